// SyncGate under hundreds of threads that abort, leave, die and start again
// while a chief closes and opens the gate, in real time with short leases.

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/gate/gate_accounting.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"
#include "tf_syncrep/cc/lib/lease_timer.h"

namespace tf_syncrep {
namespace {

using std::chrono::milliseconds;

// All waits together take less than this, unless one hangs.
constexpr auto kDeadline = std::chrono::seconds(50);

// The gate as its timer sees it; tells when the timer's thread has released it.
struct Polled {
  explicit Polled(SyncGate& gate) : gate(gate) {}
  ~Polled() { gone.set_value(); }

  SyncGate::Time Poll() { return gate.Poll(); }
  void Shutdown() { gate.Shutdown(); }

  SyncGate& gate;
  std::promise<void> gone;
};

// Blocks until a call has called its callback.
template <typename Value>
class Result {
 public:
  using Pair = std::pair<GateStatus, Value>;

  std::function<void(const GateStatus&, const Value&)> Callback() {
    // A second call of the callback would throw.
    return [promise = promise_](const GateStatus& status, const Value& value) {
      promise->set_value({status, value});
    };
  }

  // Returns an Internal error, which nothing else returns, if the callback is
  // not called.
  Pair Get() {
    if (future_.wait_for(kDeadline) != std::future_status::ready) {
      ADD_FAILURE() << "a wait hangs";
      return {{13, "hangs"}, {}};
    }
    return future_.get();
  }

  bool IsThere(milliseconds time) {
    return future_.wait_for(time) == std::future_status::ready;
  }

 private:
  std::shared_ptr<std::promise<Pair>> promise_ =
      std::make_shared<std::promise<Pair>>();
  std::future<Pair> future_ = promise_->get_future();
};

class SyncGateStressTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int kWorkers = 200;
  static constexpr auto kTime = std::chrono::seconds(3);

  // A task's life, one incarnation after the other.
  void RunWorker(int task) {
    std::mt19937 random(task);
    const auto one_in = [&random](int n) { return random() % n == 0; };
    GateWorker worker = {"/job:worker/replica:0/task:" + std::to_string(task),
                         1};
    auto kind = SyncGate::AcquireKind::kFirst;
    while (!stop_) {
      Result<SyncGate::Permit> acquire;
      const SyncGate::WaitId id =
          gate_->Acquire(worker, kind, {}, acquire.Callback());
      if (one_in(20) && !acquire.IsThere(milliseconds(1))) {
        gate_->Cancel(id);
      }
      const auto [status, permit] = acquire.Get();
      kind = SyncGate::AcquireKind::kNext;
      if (!status.ok()) {
        // A session does not recover at once.
        std::this_thread::sleep_for(milliseconds(1));
        continue;
      }
      if (one_in(300)) {  // is stopped past its lease
        std::this_thread::sleep_for(milliseconds(60));
      }
      SyncGate::Admission admission;
      if (!gate_
               ->Admit(permit.generation, worker, permit.round, !one_in(50),
                       &admission)
               .ok() ||
          admission != SyncGate::Admission::kAdmitted) {
        continue;
      }
      if (one_in(10000)) {  // is stopped between its pushes
        std::this_thread::sleep_for(milliseconds(60));
      }
      if (one_in(3000)) {
        gate_->Abort(permit.generation, worker, permit.round);
      } else if (one_in(3000)) {  // is killed
        worker.incarnation++;
        kind = SyncGate::AcquireKind::kFirst;
      } else if (gate_->Commit(permit.generation, worker, permit.round)) {
        num_commits_++;
      }
      if (one_in(200)) {
        gate_->Leave(worker);
      }
    }
    gate_->Leave(worker);
  }

  // An updater of any generation.
  void RunUpdater() {
    while (!stop_) {
      const int64_t generation = generation_;
      Result<SyncGate::Quorum> wait;
      gate_->WaitQuorum(generation, milliseconds(20), wait.Callback());
      const auto [status, quorum] = wait.Get();
      if (status.ok()) {
        Advance(generation, quorum, quorum_);
      } else if (status.code == GateStatus::kDeadlineExceeded) {
        Result<SyncGate::Quorum> flush;
        gate_->Flush(generation, flush.Callback());
        const auto [flush_status, rest] = flush.Get();
        if (flush_status.ok() && rest.num_gradients > 0) {
          Advance(generation, rest, rest.num_gradients);
        }
      } else {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
  }

  void Advance(int64_t generation, const SyncGate::Quorum& quorum,
               int64_t num_expected) {
    EXPECT_EQ(quorum.num_gradients, num_expected);
    bool advanced;
    if (gate_->Advance(generation, quorum.round, ++step_, &advanced).ok() &&
        advanced) {
      num_updates_++;
      num_applied_ += quorum.num_gradients;
    }
  }

  // The chief restarts, closes, opens, drains, and stops the updater.
  void RunChief() {
    std::mt19937 random(0);
    while (!stop_) {
      std::this_thread::sleep_for(milliseconds(random() % 100));
      switch (random() % 5) {
        case 0:
          gate_->Close(SyncGate::kAnyGeneration);
          std::this_thread::sleep_for(milliseconds(3));
          generation_ = gate_->Open(step_, {});
          break;
        case 1:
          generation_ = gate_->Open(step_, {});
          gate_->AddPasses(kWorkers);
          break;
        case 2:
          gate_->CancelUpdater(generation_);
          break;
        default: {
          auto drained = std::make_shared<std::promise<void>>();
          std::future<void> end = drained->get_future();
          const SyncGate::WaitId id = gate_->Drain(
              generation_,
              [drained](const GateStatus&) { drained->set_value(); });
          if (end.wait_for(milliseconds(50)) != std::future_status::ready) {
            gate_->Cancel(id);
          }
          EXPECT_EQ(end.wait_for(kDeadline), std::future_status::ready);
        }
      }
    }
  }

  // On a slow machine this takes longer.
  bool EverythingHasHappened() const {
    const SyncGateStats stats = gate_->Stats();
    return stats.updates > 0 && stats.voids > 0 && stats.aborted > 0 &&
           stats.late > 0 && stats.stale > 0 && stats.rejected > 0 &&
           stats.expired > 0;
  }

  int64_t quorum_ = 0;
  std::unique_ptr<SyncGate> gate_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> generation_{0};
  std::atomic<int64_t> step_{0};
  std::atomic<int64_t> num_commits_{0};
  std::atomic<int64_t> num_updates_{0};
  std::atomic<int64_t> num_applied_{0};
};

TEST_P(SyncGateStressTest, NothingHangsAndTheLedgerBalances) {
  SyncGateOptions options;
  options.strict = GetParam();
  options.quorum = quorum_ = kWorkers * 9 / 10;
  options.total = kWorkers;
  options.lease = milliseconds(40);
  options.start_lease = milliseconds(200);
  const auto bell = std::make_shared<LeaseTimer::Bell>();
  std::atomic<int64_t> num_lines{0};
  int64_t num_voids = 0;  // under the gate's lock
  options.alarm = [bell] { bell->Ring(); };
  options.log = [&num_lines](const std::string&) { num_lines++; };
  options.observer = [&num_voids](const GateEvent& event) {
    num_voids += event.kind == GateEvent::Kind::kVoid ? 1 : 0;
  };
  gate_ = std::make_unique<SyncGate>(options, LeaseTimer::SteadyTime);
  auto polled = std::make_shared<Polled>(*gate_);
  std::future<void> timer_has_ended = polled->gone.get_future();
  auto timer = std::make_unique<LeaseTimer>(polled, milliseconds(5), bell);
  polled.reset();

  std::vector<std::thread> threads;
  for (int task = 0; task < kWorkers; ++task) {
    threads.emplace_back([this, task] { RunWorker(task); });
  }
  generation_ = gate_->Open(0, {});
  for (int i = 0; i < 2; ++i) {  // the one gets in the other's way
    threads.emplace_back([this] { RunUpdater(); });
  }
  threads.emplace_back([this] { RunChief(); });
  const auto begin = std::chrono::steady_clock::now();
  const auto has_run_for = [begin](SyncGate::Time time) {
    return std::chrono::steady_clock::now() - begin >= time;
  };
  while (!has_run_for(kTime) ||
         !(EverythingHasHappened() || has_run_for(kDeadline))) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(EverythingHasHappened());
  stop_ = true;
  // The chief may just be opening it again.
  threads.back().join();
  threads.pop_back();
  gate_->Close(SyncGate::kAnyGeneration);
  for (std::thread& thread : threads) {
    thread.join();
  }

  timer.reset();
  timer_has_ended.wait();
  const SyncGateStats stats = gate_->Stats();
  EXPECT_EQ(BrokenIdentities(stats, num_updates_, num_applied_), "");
  EXPECT_EQ(stats.committed, num_commits_);
  EXPECT_EQ(stats.voids, num_voids);
  EXPECT_GE(num_lines, stats.voids);
}

INSTANTIATE_TEST_SUITE_P(Modes, SyncGateStressTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Strict" : "WorkConserving";
                         });

}  // namespace
}  // namespace tf_syncrep
