// WorkQueue: each item is read once an epoch; items of dead readers are read
// again; nobody waits for slow readers except at the very end.

#include "tf_syncrep/cc/lib/work_queue.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

using std::chrono::seconds;

// A queue with a clock that the test sets.
class WorkQueueTest : public testing::Test {
 protected:
  struct Answer {
    GateStatus status;
    WorkQueue::Grant grant;
  };
  // Empty until the queue has answered.
  using Pending = std::shared_ptr<std::optional<Answer>>;

  void Make(const WorkQueueOptions& options) {
    queue_ = std::make_unique<WorkQueue>(options, [this] { return now_; });
  }
  void Make(int64_t num_items, int64_t num_epochs = 1,
            seconds lease = seconds(600)) {
    Make(WorkQueueOptions{num_items, num_epochs, /*shuffle=*/false, /*seed=*/0,
                          lease});
  }

  ~WorkQueueTest() override {
    if (queue_ != nullptr) {
      queue_->Shutdown();
    }
  }

  Pending Take(const WorkReader& reader, int64_t last = WorkQueue::kNoTicket) {
    auto pending = std::make_shared<std::optional<Answer>>();
    last_wait_ = queue_->Take(
        reader, last,
        [pending](const GateStatus& status, const WorkQueue::Grant& grant) {
          EXPECT_FALSE(pending->has_value()) << "a second answer";
          *pending = Answer{status, grant};
        });
    return pending;
  }

  // Takes an item; the queue must answer at once.
  WorkQueue::Grant TakeNow(const WorkReader& reader,
                           int64_t last = WorkQueue::kNoTicket) {
    const Pending pending = Take(reader, last);
    EXPECT_TRUE(pending->has_value());
    EXPECT_TRUE((*pending)->status.ok()) << (*pending)->status.message;
    return (*pending)->grant;
  }

  static int Code(const Pending& pending) {
    return pending->has_value() ? (*pending)->status.code : -1;
  }

  static WorkReader Reader(const std::string& device, uint64_t stream = 1,
                           uint64_t incarnation = 1) {
    return {{device, incarnation}, stream};
  }

  void CheckIdentities() const {
    const WorkQueueStats stats = queue_->Stats();
    EXPECT_EQ(stats.handed_out,
              stats.done + stats.in_flight + stats.given_back);
    EXPECT_EQ(stats.given_back, stats.repeated + stats.waiting_items);
  }

  WorkQueue::Time now_{0};
  std::unique_ptr<WorkQueue> queue_;
  WorkQueue::WaitId last_wait_ = 0;
};

TEST_F(WorkQueueTest, ReadersShareTheItemsOfEachEpoch) {
  Make(5, /*num_epochs=*/2);
  std::map<std::string, int64_t> last;
  std::vector<std::pair<int64_t, int64_t>> items;
  for (int i = 0; i < 10; ++i) {
    const std::string name = i % 3 == 0 ? "a" : "b";
    const auto grant = TakeNow(Reader(name), last[name]);
    last[name] = grant.ticket;
    items.emplace_back(grant.item.epoch, grant.item.item);
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(items[i], std::pair(int64_t{i / 5}, int64_t{i % 5}));
  }
  const Pending a = Take(Reader("a"), last["a"]);
  EXPECT_EQ(Code(a), -1);  // b may yet die
  EXPECT_EQ(Code(Take(Reader("b"), last["b"])), GateStatus::kOutOfRange);
  EXPECT_EQ(Code(a), GateStatus::kOutOfRange);
  EXPECT_EQ(queue_->Stats().done, 10);
  CheckIdentities();
}

TEST_F(WorkQueueTest, ShuffledEpochsHaveEachItemOnce) {
  WorkQueueOptions options;
  options.num_items = 50;
  options.num_epochs = 0;
  options.shuffle = true;
  options.seed = 9;
  Make(options);
  std::set<std::vector<int64_t>> orders;
  int64_t last = 0;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int64_t> order;
    for (int i = 0; i < 50; ++i) {
      const auto grant = TakeNow(Reader("a"), last);
      last = grant.ticket;
      EXPECT_EQ(grant.item.epoch, epoch);
      order.push_back(grant.item.item);
    }
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 50u);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 4u);
}

TEST_F(WorkQueueTest, SlowReaderHoldsUpNoEpochButTheLast) {
  Make(2, /*num_epochs=*/3);
  const auto slow = TakeNow(Reader("slow"));
  int64_t last = TakeNow(Reader("fast")).ticket;
  for (int i = 0; i < 4; ++i) {
    const auto grant = TakeNow(Reader("fast"), last);
    EXPECT_EQ(grant.item.epoch, 1 + i / 2);
    last = grant.ticket;
  }
  const Pending end = Take(Reader("fast"), last);
  EXPECT_EQ(Code(end), -1);
  EXPECT_EQ(queue_->Stats().waiting, 1);
  EXPECT_EQ(Code(Take(Reader("slow"), slow.ticket)), GateStatus::kOutOfRange);
  EXPECT_EQ(Code(end), GateStatus::kOutOfRange);
  EXPECT_EQ(queue_->Stats().done, 6);
}

TEST_F(WorkQueueTest, NobodyWaitsAtALimitNorGoesBeyondIt) {
  Make(2, /*num_epochs=*/2, /*lease=*/seconds(10));
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    queue_->SetLimit(epoch);
    const auto slow = TakeNow(Reader("slow"));
    const auto fast = TakeNow(Reader("fast"));
    EXPECT_EQ(fast.item.epoch, epoch);
    EXPECT_EQ(Code(Take(Reader("fast"), fast.ticket)), GateStatus::kOutOfRange);
    // Items that come back are within the limit.
    now_ += seconds(10);
    queue_->Poll();
    const auto again = TakeNow(Reader("fast"));
    EXPECT_EQ(again.item.epoch, epoch);
    EXPECT_EQ(again.item.item, slow.item.item);
    EXPECT_EQ(Code(Take(Reader("fast"), again.ticket)),
              GateStatus::kOutOfRange);
    EXPECT_EQ(Code(Take(Reader("slow"), slow.ticket)), GateStatus::kOutOfRange);
  }
  EXPECT_EQ(queue_->Stats().done, 4);
  CheckIdentities();
}

TEST_F(WorkQueueTest, LimitThatIsRaisedLetsReadersGoOn) {
  Make(1, /*num_epochs=*/2);
  queue_->SetLimit(0);
  const auto first = TakeNow(Reader("a"));
  EXPECT_EQ(Code(Take(Reader("a"), first.ticket)), GateStatus::kOutOfRange);
  queue_->SetLimit(WorkQueue::kNoLimit);
  const auto second = TakeNow(Reader("a"));
  EXPECT_EQ(second.item.epoch, 1);
  const Pending waits = Take(Reader("b"));
  EXPECT_EQ(Code(waits), -1);
  queue_->SetLimit(1);
  EXPECT_EQ(Code(waits), GateStatus::kOutOfRange);
}

TEST_F(WorkQueueTest, ItemOfASilentReaderComesBackWhenItsLeaseEnds) {
  Make(2, /*num_epochs=*/1, /*lease=*/seconds(10));
  const auto lost = TakeNow(Reader("lost"));
  now_ = seconds(4);
  const auto mine = TakeNow(Reader("mine"));
  const Pending more = Take(Reader("mine"), mine.ticket);
  now_ = seconds(9);
  EXPECT_EQ(queue_->Poll(), seconds(10));
  EXPECT_EQ(Code(more), -1);
  now_ = seconds(10);
  EXPECT_EQ(queue_->Poll(), seconds(20));
  ASSERT_EQ(Code(more), GateStatus::kOk);
  EXPECT_EQ((*more)->grant.item.item, lost.item.item);
  // A reader that was silent comes too late: the item counts once, for the
  // reader that has it now.
  const Pending late = Take(Reader("lost"), lost.ticket);
  EXPECT_EQ(Code(late), -1);
  EXPECT_EQ(queue_->Stats().late, 1);
  EXPECT_EQ(queue_->Stats().done, 1);
  Take(Reader("mine"), (*more)->grant.ticket);
  EXPECT_EQ(Code(late), GateStatus::kOutOfRange);
  EXPECT_EQ(queue_->Stats().done, 2);
  CheckIdentities();
}

TEST_F(WorkQueueTest, AnotherLifeOfAWorkerGivesBackWhatTheLastOneHeld) {
  Make(3);
  const auto first = TakeNow(Reader("w", 1, 11));
  const auto second = TakeNow(Reader("w", 2, 11));
  const auto again = TakeNow(Reader("w", 1, 12));
  EXPECT_EQ(again.item.item, first.item.item);
  EXPECT_EQ(TakeNow(Reader("w", 1, 12), again.ticket).item.item,
            second.item.item);
  EXPECT_EQ(Code(Take(Reader("w", 2, 11), second.ticket)),
            GateStatus::kAborted);
  EXPECT_EQ(queue_->Stats().done, 1);
  CheckIdentities();
}

TEST_F(WorkQueueTest, LateQuestionOfADeadLifeEndsNobodysWait) {
  Make(2);
  const auto first = TakeNow(Reader("w", 1, 11));
  TakeNow(Reader("other"));
  EXPECT_EQ(TakeNow(Reader("w", 1, 12)).item.item, first.item.item);
  const Pending waits = Take(Reader("w", 1, 12), queue_->Stats().handed_out);
  EXPECT_EQ(Code(waits), -1);
  EXPECT_EQ(Code(Take(Reader("w", 1, 11), first.ticket)), GateStatus::kAborted);
  EXPECT_EQ(Code(waits), -1);
}

TEST_F(WorkQueueTest, TicketsOfAQueueThatWasLostEndNoItem) {
  WorkQueueOptions options;
  options.num_items = 2;
  Make(options);
  const auto lost = TakeNow(Reader("a"));
  queue_->Shutdown();
  options.first_ticket = 1000;  // the tickets of a later queue
  Make(options);
  // The answer is lost, and the reader asks again as before.
  const auto first = TakeNow(Reader("a"), lost.ticket);
  EXPECT_EQ(TakeNow(Reader("a"), lost.ticket).ticket, first.ticket);
  EXPECT_EQ(queue_->Stats().done, 0);
}

TEST_F(WorkQueueTest, ReaderThatBeginsAnewReadsTheItemOfItsStreamAgain) {
  Make(2);
  const auto first = TakeNow(Reader("a"));
  const auto again = TakeNow(Reader("a"));
  EXPECT_EQ(again.item.item, first.item.item);
  EXPECT_NE(again.ticket, first.ticket);
  EXPECT_EQ(queue_->Stats().repeated, 1);
  CheckIdentities();
}

TEST_F(WorkQueueTest, OnlyTheLastOfAWorkersReadersWaits) {
  Make(3);
  const auto first = TakeNow(Reader("a", 1));
  const auto second = TakeNow(Reader("a", 2));
  TakeNow(Reader("b"));
  EXPECT_EQ(Code(Take(Reader("a", 1), first.ticket)), GateStatus::kOutOfRange);
  EXPECT_EQ(Code(Take(Reader("a", 2), second.ticket)), -1);
}

TEST_F(WorkQueueTest, LostAnswerIsGivenAgain) {
  Make(3);
  const auto first = TakeNow(Reader("a"));
  const auto second = TakeNow(Reader("a"), first.ticket);
  const auto same = TakeNow(Reader("a"), first.ticket);
  EXPECT_EQ(same.ticket, second.ticket);
  EXPECT_EQ(queue_->Stats().handed_out, 2);
  TakeNow(Reader("b"));
  const Pending waits = Take(Reader("c"));
  const Pending asks_again = Take(Reader("c"));
  EXPECT_EQ(Code(waits), GateStatus::kAborted);
  EXPECT_EQ(Code(asks_again), -1);
}

TEST_F(WorkQueueTest, RecentItemsAreThoseOfReadersAndTheOnesBefore) {
  Make(9);
  const int64_t first = TakeNow(Reader("a")).ticket;
  EXPECT_EQ(queue_->Recent(), std::vector<int64_t>({0}));
  const int64_t second = TakeNow(Reader("a"), first).ticket;
  TakeNow(Reader("b"));
  EXPECT_EQ(queue_->Recent(), std::vector<int64_t>({1, 2, 0}));
  TakeNow(Reader("a"), second);
  EXPECT_EQ(queue_->Recent(), std::vector<int64_t>({3, 2, 1}));
}

TEST_F(WorkQueueTest, WaitsEndWithTheQueueOrByTheirNumber) {
  Make(1);
  TakeNow(Reader("a"));
  const Pending first = Take(Reader("b"));
  EXPECT_TRUE(queue_->Cancel(last_wait_));
  EXPECT_FALSE(queue_->Cancel(last_wait_));
  EXPECT_EQ(Code(first), GateStatus::kCancelled);
  const Pending second = Take(Reader("b"));
  queue_->Shutdown();
  EXPECT_EQ(Code(second), GateStatus::kCancelled);
  EXPECT_EQ(Code(Take(Reader("c"))), GateStatus::kCancelled);
}

TEST_F(WorkQueueTest, RestoredQueueReadsWhatWasNotReadToItsEnd) {
  WorkQueueOptions options;
  options.num_items = 4;
  options.num_epochs = 2;
  options.shuffle = true;
  Make(options);
  int64_t last = 0;
  std::multiset<WorkItem> read;
  for (int i = 0; i < 5; ++i) {
    const auto grant = TakeNow(Reader("a"), last);
    last = grant.ticket;
    read.insert(grant.item);
  }
  const auto other = TakeNow(Reader("b"));
  const WorkQueueState state = queue_->Save();
  EXPECT_EQ(state.done, 4);
  EXPECT_EQ(state.waiting_items.size(), 2u);
  read.erase(state.waiting_items[0]);
  read.erase(state.waiting_items[1]);
  EXPECT_EQ(read.size(), 4u);
  EXPECT_EQ(state.waiting_items[0].epoch, 1);
  EXPECT_EQ(other.item.epoch, 1);

  Make(options);
  ASSERT_TRUE(queue_->Restore(state).ok());
  for (last = 0; read.size() < 8;) {
    const auto grant = TakeNow(Reader("c"), last);
    last = grant.ticket;
    read.insert(grant.item);
  }
  EXPECT_EQ(std::set<WorkItem>(read.begin(), read.end()).size(), 8u);
  EXPECT_EQ(Code(Take(Reader("c"), last)), GateStatus::kOutOfRange);
  EXPECT_EQ(queue_->Stats().done, 8);
  CheckIdentities();

  options.num_items = 1;
  Make(options);
  EXPECT_EQ(queue_->Restore(state).code, GateStatus::kInvalidArgument);
  EXPECT_EQ(queue_->Stats().done, 0);
}

TEST_F(WorkQueueTest, OneWhoIsToLeaveReadsWhatItHoldsAndGetsNoMore) {
  Make(4);
  const auto first = TakeNow(Reader("a"));
  const auto second = TakeNow(Reader("a", /*stream=*/2));
  queue_->Leave("a", /*gives_back=*/false);
  EXPECT_EQ(queue_->Stats().in_flight, 2);
  EXPECT_EQ(Code(Take(Reader("a"), first.ticket)), GateStatus::kOutOfRange);
  EXPECT_EQ(queue_->Stats().done, 1);
  // It has left: another one reads what it had not finished.
  queue_->Leave("a", /*gives_back=*/true);
  const auto again = TakeNow(Reader("b"));
  EXPECT_EQ(again.item.item, second.item.item);
  // Its next life is like any other.
  TakeNow(Reader("a", 1, /*incarnation=*/2));
  CheckIdentities();
}

TEST_F(WorkQueueTest, NobodyWaitsForAnyMoreWhoIsToLeave) {
  Make(1);
  const auto only = TakeNow(Reader("b"));
  const Pending waits = Take(Reader("a"));
  EXPECT_EQ(Code(waits), -1);
  queue_->Leave("a", /*gives_back=*/false);
  EXPECT_EQ(Code(waits), GateStatus::kOutOfRange);
  // One that has not asked yet gets nothing either, until an epoch begins.
  queue_->Leave("c", /*gives_back=*/false);
  queue_->Leave("b", /*gives_back=*/true);
  EXPECT_EQ(Code(Take(Reader("c"))), GateStatus::kOutOfRange);
  queue_->SetLimit(0);
  EXPECT_EQ(TakeNow(Reader("c")).item.item, only.item.item);
}

TEST_F(WorkQueueTest, OptionsThatMakeNoSenseAreNamed) {
  const auto message = [](int64_t items, int64_t epochs, seconds lease) {
    return WorkQueue::CheckOptions({items, epochs, false, 0, lease}).message;
  };
  EXPECT_EQ(message(1, 0, seconds(1)), "");
  EXPECT_EQ(message(0, 1, seconds(1)),
            "num_items must be at least 1. Received: 0");
  EXPECT_EQ(message(1, -1, seconds(1)),
            "num_epochs must not be negative. Received: -1");
  EXPECT_EQ(message(1, 1, seconds(0)),
            "lease must be positive. Received: 0 ns");
}

}  // namespace
}  // namespace tf_syncrep
