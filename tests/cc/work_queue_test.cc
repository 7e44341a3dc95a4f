// WorkQueue: each item is read once an epoch; items of dead readers are read
// again; nobody waits for slow readers except at the very end.

#include "tf_syncrep/cc/lib/work_queue.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
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
  WorkQueueOptions options;
  options.num_items = 5;
  options.num_epochs = 2;
  Make(options);
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
  WorkQueueOptions options;
  options.num_items = 2;
  options.num_epochs = 3;
  Make(options);
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
  WorkQueueOptions options;
  options.num_items = 2;
  options.num_epochs = 2;
  options.lease = seconds(10);
  Make(options);
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
  WorkQueueOptions options;
  options.num_items = 1;
  options.num_epochs = 2;
  Make(options);
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
  WorkQueueOptions options;
  options.num_items = 2;
  options.lease = seconds(10);
  Make(options);
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
  WorkQueueOptions options;
  options.num_items = 3;
  Make(options);
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
  WorkQueueOptions options;
  options.num_items = 2;
  Make(options);
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
  WorkQueueOptions options;
  options.num_items = 2;
  Make(options);
  const auto first = TakeNow(Reader("a"));
  const auto again = TakeNow(Reader("a"));
  EXPECT_EQ(again.item.item, first.item.item);
  EXPECT_NE(again.ticket, first.ticket);
  EXPECT_EQ(queue_->Stats().repeated, 1);
  CheckIdentities();
}

TEST_F(WorkQueueTest, OnlyTheLastOfAWorkersReadersWaits) {
  WorkQueueOptions options;
  options.num_items = 3;
  Make(options);
  const auto first = TakeNow(Reader("a", 1));
  const auto second = TakeNow(Reader("a", 2));
  TakeNow(Reader("b"));
  EXPECT_EQ(Code(Take(Reader("a", 1), first.ticket)), GateStatus::kOutOfRange);
  EXPECT_EQ(Code(Take(Reader("a", 2), second.ticket)), -1);
}

TEST_F(WorkQueueTest, LostAnswerIsGivenAgain) {
  WorkQueueOptions options;
  options.num_items = 3;
  Make(options);
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

TEST_F(WorkQueueTest, WaitsEndWithTheQueueOrByTheirNumber) {
  Make({});
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

// Readers ask, die, come back, lose answers and outlive leases at random.
TEST_F(WorkQueueTest, EveryItemIsReadToItsEndOnceWhateverHappens) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    WorkQueueOptions options;
    options.num_items = 1 + below(6);
    options.num_epochs = 1 + below(3);
    options.shuffle = below(2) == 1;
    options.seed = seed;
    options.lease = seconds(10);
    now_ = seconds(0);
    if (queue_ != nullptr) {
      queue_->Shutdown();
    }
    Make(options);
    struct State {
      WorkReader reader;
      Pending pending;
      int64_t last = WorkQueue::kNoTicket;
      bool has_ended = false;
    };
    std::vector<State> readers;
    for (int i = 0; i < 4; ++i) {
      readers.push_back({Reader("w" + std::to_string(i / 2), i), {}, 0, false});
    }
    const auto ask = [&](State& state) {
      state.pending = Take(state.reader, state.last);
    };
    int64_t faults = 10;
    for (int step = 0; step < 2000; ++step) {
      State& state = readers[below(4)];
      const int64_t what = faults > 0 ? below(10) : 9;
      if (what == 0) {  // Its worker begins another life.
        --faults;
        const uint64_t incarnation = state.reader.worker.incarnation + 1;
        for (State& other : readers) {
          if (other.reader.worker.device == state.reader.worker.device) {
            other = {{{other.reader.worker.device, incarnation},
                      other.reader.stream},
                     {},
                     WorkQueue::kNoTicket,
                     false};
          }
        }
      } else if (what == 1) {  // All are silent for long.
        --faults;
        now_ += seconds(11);
        queue_->Poll();
      } else if (what == 2 && state.pending != nullptr) {
        --faults;
        ask(state);  // The answer was lost.
      } else if (state.pending == nullptr) {
        if (!state.has_ended) {
          ask(state);
        }
      } else if (state.pending->has_value()) {
        const Answer answer = **state.pending;
        state.pending = nullptr;
        if (answer.status.ok()) {
          state.last = answer.grant.ticket;
        } else {
          ASSERT_EQ(answer.status.code, GateStatus::kOutOfRange);
          state.has_ended = true;
        }
      }
      CheckIdentities();
    }
    const int64_t all = options.num_items * options.num_epochs;
    for (const State& state : readers) {
      EXPECT_TRUE(state.has_ended) << seed;
    }
    EXPECT_EQ(queue_->Stats().done, all) << seed;
    EXPECT_EQ(queue_->Stats().in_flight, 0) << seed;
  }
}

}  // namespace
}  // namespace tf_syncrep
