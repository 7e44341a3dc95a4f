// SyncGate with workers of different speeds, in virtual time: nobody is idle
// because another worker is slow, stuck or dead.

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "tests/cc/gate/gate_fixture.h"
#include "tf_syncrep/cc/lib/gate/ledger.h"
#include "tf_syncrep/cc/lib/gate/pace.h"

namespace tf_syncrep {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A training in virtual time: workers that compute one gradient after the
// other, and an updater that takes no time.
class SyncGatePaceTest : public GateTest {
 protected:
  // How long a worker's next step takes; seconds(0) if it is dead from now on,
  // with its permit.
  using StepTime = std::function<SyncGate::Time(int task)>;

  struct Result {
    int64_t updates = 0;
    int64_t wasted = 0;             // gradients
    int64_t computed = 0;           // gradients
    SyncGate::Time longest_gap{0};  // between updates
  };

  void Begin(int num_workers, int64_t quorum, int64_t total, bool strict,
             const StepTime& step_time, bool spares = true) {
    SyncGateOptions options = Options(quorum, total, strict);
    options.spares = spares;
    options.alarm = [this] { alarms_++; };
    Make(options);
    generation = Open(0);
    step_time_ = step_time;
    events_.clear();
    computing_.clear();
    wasted_before_ = 0;
    calls_.assign(num_workers, nullptr);
    last_update_ = now;
    result_ = {};
    Poll();
    for (int task = 0; task < num_workers; ++task) {
      calls_[task] = Acquire(Worker(task));
    }
    Settle();
  }

  // Runs for some time, or until there were enough updates.
  Result Run(SyncGate::Time time, int64_t updates = INT64_MAX) {
    result_ = {};
    const SyncGate::Time end = now + time;
    last_update_ = now;
    while (result_.updates < updates) {
      SyncGate::Time next = next_poll_;
      if (!events_.empty()) {
        next = std::min(next, events_.begin()->first);
      }
      if (next > end) {
        break;
      }
      now = std::max(now, next);
      if (next == next_poll_) {
        Poll();
      }
      while (!events_.empty() && events_.begin()->first <= now) {
        const int task = events_.begin()->second;
        events_.erase(events_.begin());
        Hand(task);
      }
      Settle();
    }
    const SyncGateStats stats = gate->Stats();
    result_.wasted = stats.late + stats.stale + stats.voided + stats.aborted -
                     wasted_before_;
    wasted_before_ += result_.wasted;
    return result_;
  }

  int64_t alarms_ = 0;

 private:
  // Polls as the timer does. An alarm from within it would make it poll for
  // ever.
  void Poll() {
    const int64_t alarms = alarms_;
    next_poll_ = gate->Poll();
    EXPECT_EQ(alarms_, alarms);
  }

  // Hands in the worker's gradient.
  void Hand(int task) {
    result_.computed++;
    Contribute(Worker(task), calls_[task]->value);
    calls_[task] = Acquire(Worker(task));
    computing_.erase(task);
  }

  // Starts the steps that were permitted, and applies full rounds.
  void Settle() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < calls_.size(); ++i) {
        const int task = static_cast<int>(i);
        if (calls_[i]->granted() && computing_.count(task) == 0) {
          computing_.insert(task);
          const SyncGate::Time time = step_time_(task);
          if (time > SyncGate::Time(0)) {
            events_.insert({now + time, task});
          }
          changed = true;
        }
      }
      const SyncGateStats stats = gate->Stats();
      if (stats.pending == stats.quorum) {
        Update();
        result_.updates++;
        result_.longest_gap = std::max(result_.longest_gap, now - last_update_);
        last_update_ = now;
        changed = true;
      }
    }
    if (alarms_ > 0) {
      alarms_ = 0;
      Poll();
    }
  }

  StepTime step_time_;
  std::multimap<SyncGate::Time, int> events_;  // ends of steps
  std::set<int> computing_;
  std::vector<AcquireCall> calls_;
  SyncGate::Time last_update_{0};
  SyncGate::Time next_poll_{0};
  int64_t wasted_before_ = 0;
  Result result_;
};

// Steps of about a second, with random variation.
class Noise {
 public:
  explicit Noise(double share) : share_(share) {}

  SyncGate::Time operator()() {
    std::normal_distribution<double> normal(1.0, share_);
    return duration_cast<SyncGate::Time>(
        std::chrono::duration<double>(std::clamp(normal(random_), 0.2, 1.8)));
  }

 private:
  const double share_;
  std::mt19937 random_{7};
};

TEST(PaceTest, TheLongestOfAFewStepsSaysWhenOthersAreOverdue) {
  Pace pace;
  GateAccount holder;
  LonePermits permits;
  permits.Add(&holder);
  EXPECT_EQ(pace.NextOverdue(permits, GateTime(0)), Pace::kNever);
  for (const milliseconds step :
       {milliseconds(1000), milliseconds(3000), milliseconds(200)}) {
    pace.LearnStep(step, /*is_first=*/step == seconds(1));
  }
  EXPECT_EQ(pace.NextOverdue(permits, GateTime(0)), seconds(12));
}

TEST(PaceTest, TheFastestIdleWorkerCountsBesideOneWhoseStepIsNotKnown) {
  Pace pace;
  for (int i = 0; i < 100; ++i) {
    pace.LearnStep(seconds(1), /*is_first=*/false);
  }
  constexpr GateTime kUnknown(0);
  constexpr milliseconds kRest(400);
  EXPECT_FALSE(pace.IsOverdue(kRest, {kUnknown, seconds(1)}));
  EXPECT_TRUE(pace.IsOverdue(kRest, {kUnknown, milliseconds(100)}));
  EXPECT_TRUE(pace.IsOverdue(seconds(2), {kUnknown, seconds(3)}));
}

TEST_F(SyncGatePaceTest, AmongEquallyFastWorkersThereAreNoSpares) {
  for (const double share : {0.0, 0.1, 0.2}) {
    Noise noise(share);
    Begin(4, 4, 4, /*strict=*/false, [&noise](int) { return noise(); });
    const Result result = Run(seconds(3000));
    EXPECT_LE(result.wasted, result.computed * 2 / 100) << "noise " << share;
    EXPECT_GE(result.updates, 1800);
  }
}

TEST_F(SyncGatePaceTest, AStragglerCostsAFractionOfAStep) {
  int64_t updates[2];
  for (const bool strict : {false, true}) {
    Noise noise(0.1);
    Begin(4, 4, 4, strict,
          [&noise](int task) { return task == 3 ? 10 * noise() : noise(); });
    updates[strict ? 1 : 0] = Run(seconds(1000)).updates;
  }
  EXPECT_GE(updates[0], 3 * updates[1]);
  // The three others need two steps for four gradients.
  EXPECT_GE(updates[0], 440);
}

TEST_F(SyncGatePaceTest,
       WithoutSparesEveryGradientCountsAndTheSlowAreWaitedFor) {
  Noise noise(0.2);
  const StepTime step_time = [&noise](int task) {
    return task == 3 ? 10 * noise() : noise();
  };
  Begin(4, 4, 4, /*strict=*/false, step_time, /*spares=*/false);
  const Result result = Run(seconds(1000));
  EXPECT_EQ(gate->Stats().spares, 0);
  EXPECT_EQ(result.wasted, 0);
  EXPECT_GE(result.updates, 95);
}

TEST_F(SyncGatePaceTest, OneThatIsStuckInItsSecondStepIsNotWaitedFor) {
  // Little is known yet of how long steps take.
  int num_steps = 0;
  Begin(2, 2, 2, /*strict=*/false, [&num_steps](int task) {
    num_steps += task;
    return task == 1 && num_steps == 2 ? SyncGate::Time(0) : seconds(1);
  });
  EXPECT_GE(Run(seconds(20)).updates, 8);
}

TEST_F(SyncGatePaceTest, AWorkerThatDiesCostsAFewSteps) {
  bool dead = false;
  Noise noise(0.1);
  Begin(4, 4, 4, /*strict=*/false, [&](int task) {
    return dead && task == 3 ? SyncGate::Time(0) : noise();
  });
  Run(seconds(30));
  dead = true;
  const Result result = Run(seconds(200));
  EXPECT_LT(result.longest_gap, seconds(10));
  EXPECT_GE(result.updates, 95);
  EXPECT_FALSE(StatsOf(Worker(3)).live);
}

TEST_F(SyncGatePaceTest, AWorkerThatDiesWhileItPushesCostsAFewSteps) {
  Noise noise(0.1);
  Begin(4, 4, 4, /*strict=*/false, [&](int) { return noise(); });
  Run(seconds(30));
  // A further worker takes part, and never commits.
  const auto dying = Acquire(Worker(9));
  Run(seconds(5));
  ASSERT_TRUE(dying->granted());
  if (Admit(Worker(9), dying->value) == Admission::kAdmitted) {
    const Result result = Run(seconds(60));
    EXPECT_LT(result.longest_gap, seconds(10));
    EXPECT_EQ(gate->Stats().voids, 1);
  }
}

TEST_F(SyncGatePaceTest, IdleWorkersCostTheGateNoTime) {
  // Processor time of rounds with a thousand workers.
  const auto time_of = [this](bool spares) {
    SyncGateOptions options = Options(1000, 1000, /*strict=*/false);
    options.spares = spares;
    Make(options);
    generation = Open(0);
    std::vector<AcquireCall> calls;
    for (int task = 0; task < options.total; ++task) {
      calls.push_back(Acquire(Worker(task)));
    }
    const std::clock_t begin = std::clock();
    for (int update = 0; update < 3; ++update) {
      now += seconds(1);
      for (int task = 0; task < options.total; ++task) {
        EXPECT_TRUE(Contribute(Worker(task), calls[task]->value));
        calls[task] = Acquire(Worker(task));
        EXPECT_TRUE(calls[task]->waits());
      }
      Update();
    }
    return static_cast<double>(std::clock() - begin);
  };
  time_of(true);  // the first run takes longer
  EXPECT_LT(time_of(true), 5 * time_of(false));
}

struct Work {
  int64_t updates = 0;
  int64_t computed = 0;  // gradients
};

// The work that is done in `time` with a fixed number of backups and without
// spares: an idle worker may compute while fewer than `total` gradients of the
// round are computed or being computed.
Work WithBackups(int num_workers, int64_t quorum, int64_t total,
                 const std::function<SyncGate::Time(int, int64_t)>& step_time,
                 SyncGate::Time time) {
  std::multimap<SyncGate::Time, std::pair<int, int64_t>> ends;
  std::vector<int> idle(num_workers);
  std::iota(idle.begin(), idle.end(), 0);
  Work work;
  int64_t permitted = 0;  // in this round, including those that have ended
  int64_t given = 0;
  for (SyncGate::Time now{0}; now < time;) {
    while (!idle.empty() && permitted < total) {
      const int task = idle.front();
      idle.erase(idle.begin());
      ends.insert({now + step_time(task, work.updates), {task, work.updates}});
      permitted++;
    }
    now = ends.begin()->first;
    const auto [task, round] = ends.begin()->second;
    ends.erase(ends.begin());
    idle.push_back(task);
    work.computed++;
    given += round == work.updates ? 1 : 0;
    if (given == quorum) {
      work.updates++;
      given = permitted = 0;
    }
  }
  return work;
}

TEST_F(SyncGatePaceTest, AStragglerThatMovesIsAsGoodAsTheBestNumberOfBackups) {
  // Every 50 updates another worker is slow.
  constexpr auto kTime = seconds(5000);
  const auto step_time = [](Noise* noise, int task, int64_t updates) {
    return task == updates / 50 % 4 ? 10 * (*noise)() : (*noise)();
  };
  Noise noise(0.1);
  Begin(4, 4, 4, /*strict=*/false, [&](int task) {
    return step_time(&noise, task, gate->Stats().updates);
  });
  const Result result = Run(kTime);
  Work best;
  for (int64_t total = 4; total <= 8; ++total) {
    Noise same(0.1);
    const auto step_of = [&](int task, int64_t updates) {
      return step_time(&same, task, updates);
    };
    const Work work = WithBackups(4, 4, total, step_of, kTime);
    best = work.updates > best.updates ? work : best;
  }
  const int64_t wasted = result.computed - 4 * result.updates;
  const int64_t best_wasted = best.computed - 4 * best.updates;
  RecordProperty("updates", static_cast<int>(result.updates));
  RecordProperty("wasted", static_cast<int>(wasted));
  RecordProperty("updates_with_backups", static_cast<int>(best.updates));
  RecordProperty("wasted_with_backups", static_cast<int>(best_wasted));
  // Only one late spare after each change is missing.
  EXPECT_GE(result.updates, best.updates * 99 / 100);
  EXPECT_LT(wasted, best_wasted);
}

}  // namespace
}  // namespace tf_syncrep
