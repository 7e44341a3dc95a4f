// Times SyncGate with many simulated workers, which only call the gate.
//
//   sync_gate_bench callbacks|conserving|threads WORKERS UPDATES
//
// "callbacks": one thread makes all calls, so that the gate's own work is seen.
// "conserving": the same with work-conserving rounds, which are the default, in
// virtual time. Steps take a second, and none is overdue. "threads": a thread
// for each worker, which blocks in its acquire; most of the time is the
// operating system's.
//
// It prints for each update the seconds that one worker's cycle (acquire,
// admit, commit) took on average, and those from the call of Advance() to the
// moment at which the last worker is on its way. Every worker gives one
// gradient to each update; the exit status is 1 if the gate has counted
// something else.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/gate_accounting.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"
#include "tf_syncrep/cc/lib/lease_timer.h"

namespace {

using tf_syncrep::GateStatus;
using tf_syncrep::GateWorker;
using tf_syncrep::LeaseTimer;
using tf_syncrep::SyncGate;

double Seconds(SyncGate::Time time) {
  return std::chrono::duration<double>(time).count();
}

GateWorker Worker(int task) {
  return {"/job:worker/replica:0/task:" + std::to_string(task), 1};
}

void Contribute(SyncGate& gate, const GateWorker& worker,
                const SyncGate::Permit& permit) {
  SyncGate::Admission admission;
  gate.Admit(permit.generation, worker, permit.round, /*is_fit=*/true,
             &admission);
  gate.Commit(permit.generation, worker, permit.round);
}

// Waits for the quorum, and notes when Advance() was called.
struct Updater {
  SyncGate& gate;
  int64_t generation;
  int64_t step = 0;
  SyncGate::Time advanced_at{0};

  // Returns false if the gate made an error.
  bool Update(int64_t num_expected) {
    std::promise<SyncGate::Quorum> full;
    gate.WaitQuorum(generation, SyncGate::Time(0),
                    [&full](const GateStatus&, const SyncGate::Quorum& quorum) {
                      full.set_value(quorum);
                    });
    const SyncGate::Quorum quorum = full.get_future().get();
    bool advanced = false;
    advanced_at = LeaseTimer::SteadyTime();
    gate.Advance(generation, quorum.round, ++step, &advanced);
    return advanced && quorum.num_gradients == num_expected;
  }
};

void Print(double cycle, double wake_up) {
  std::printf("%.9g %.9g\n", cycle, wake_up);
}

// `now` is the gate's time if that is virtual.
bool RunCallbacks(SyncGate& gate, int workers, int updates,
                  SyncGate::Time* now) {
  std::vector<GateWorker> names;
  std::vector<SyncGate::Permit> permits(workers);
  int woken = 0;
  for (int task = 0; task < workers; ++task) {
    names.push_back(Worker(task));
  }
  const auto acquire = [&](int task) {
    gate.Acquire(
        names[task], SyncGate::AcquireKind::kNext, /*terms=*/{},
        [&, task](const GateStatus& status, const SyncGate::Permit& permit) {
          permits[task] = permit;
          woken += status.ok() ? 1 : 0;
        });
  };
  Updater updater = {gate, gate.Open(0, /*terms=*/{})};
  for (int task = 0; task < workers; ++task) {
    acquire(task);
  }
  bool right = true;
  for (int i = 0; i < updates; ++i) {
    const SyncGate::Time begin = LeaseTimer::SteadyTime();
    woken = 0;
    *now += std::chrono::seconds(1);
    for (int task = 0; task < workers; ++task) {
      *now += std::chrono::microseconds(10);
      Contribute(gate, names[task], permits[task]);
      acquire(task);
    }
    right = right && woken == 0 && updater.Update(workers) && woken == workers;
    const SyncGate::Time end = LeaseTimer::SteadyTime();
    Print(Seconds(end - begin) / workers, Seconds(end - updater.advanced_at));
  }
  gate.Close(SyncGate::kAnyGeneration);
  return right;
}

void RunWorker(SyncGate& gate, const GateWorker& worker,
               std::vector<SyncGate::Time>* wake_ups) {
  while (true) {
    std::promise<std::pair<GateStatus, SyncGate::Permit>> granted;
    gate.Acquire(
        worker, SyncGate::AcquireKind::kNext, /*terms=*/{},
        [&granted](const GateStatus& status, const SyncGate::Permit& permit) {
          granted.set_value({status, permit});
        });
    const auto [status, permit] = granted.get_future().get();
    if (!status.ok()) {
      return;
    }
    wake_ups->push_back(LeaseTimer::SteadyTime());
    Contribute(gate, worker, permit);
  }
}

bool RunThreads(SyncGate& gate, int workers, int updates) {
  std::vector<std::vector<SyncGate::Time>> wake_ups(workers);
  std::vector<SyncGate::Time> advances;
  std::vector<std::thread> threads;
  for (int task = 0; task < workers; ++task) {
    threads.emplace_back(RunWorker, std::ref(gate), Worker(task),
                         &wake_ups[task]);
  }
  Updater updater = {gate, gate.Open(0, /*terms=*/{})};
  bool right = true;
  for (int i = 0; i < updates; ++i) {
    right = right && updater.Update(workers);
    advances.push_back(updater.advanced_at);
  }
  // The workers are in one more round by now; one that is not full ends here.
  gate.Close(SyncGate::kAnyGeneration);
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int i = 1; i < updates; ++i) {
    SyncGate::Time last{0};
    for (const auto& times : wake_ups) {
      last = std::max(last, times[i]);
    }
    Print(Seconds(advances[i] - advances[i - 1]) / workers,
          Seconds(last - advances[i - 1]));
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(
        stderr,
        "sync_gate_bench callbacks|conserving|threads WORKERS UPDATES\n");
    return 2;
  }
  const std::string driver = argv[1];
  const int workers = std::atoi(argv[2]);
  const int updates = std::atoi(argv[3]);
  tf_syncrep::SyncGateOptions options;
  options.quorum = options.total = workers;
  options.strict = driver != "conserving";
  SyncGate::Time now = LeaseTimer::SteadyTime();
  SyncGate gate(options, [&now, is_virtual = !options.strict] {
    return is_virtual ? now : LeaseTimer::SteadyTime();
  });
  const bool right = driver == "threads"
                         ? RunThreads(gate, workers, updates)
                         : RunCallbacks(gate, workers, updates, &now);
  const tf_syncrep::SyncGateStats stats = gate.Stats();
  const std::string broken =
      tf_syncrep::BrokenIdentities(stats, updates, int64_t{updates} * workers);
  bool even = stats.workers.size() == static_cast<size_t>(workers);
  for (const auto& worker : stats.workers) {
    // There may be one more, in the round that Close() ended.
    even = even && worker.contributed >= updates &&
           worker.contributed <= updates + 1;
  }
  if (!right || !even || !broken.empty()) {
    std::fprintf(stderr, "the gate has counted wrongly: %s\n", broken.c_str());
    return 1;
  }
  return 0;
}
