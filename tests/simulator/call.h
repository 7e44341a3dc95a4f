// A call from a task to a parameter server, and its way there and back.

#ifndef TESTS_SIMULATOR_CALL_H_
#define TESTS_SIMULATOR_CALL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/simulator/queue_checker.h"
#include "tests/simulator/schedule.h"
#include "tests/simulator/table_checker.h"
#include "tests/simulator/twin.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"

namespace tf_syncrep::simulator {

// A checkpoint of the work queue: its own state, and the checker's.
struct SavedQueue {
  WorkQueueState state;
  QueueChecker::Saved checked;
};

struct Call {
  enum class State {
    kOnItsWay,
    kWaits,      // at the server, until it can be answered
    kRuns,       // at the server, as an op of several steps
    kComesBack,  // with its answer
  };

  int64_t number = 0;  // in the order of the calls
  CallKind kind = CallKind::kAcquire;
  Task from;
  int from_life = 0;
  Task to;
  int to_life = 0;  // the life of the server that the caller has heard of
  int variable = -1;
  State state = State::kOnItsWay;

  // The arguments; the kind decides which of them are used.
  int64_t generation = 0;
  int64_t round = 0;
  int64_t step = 0;
  int64_t count = 0;   // gradients of a round, or passes
  int64_t quorum = 0;  // terms
  int64_t total = 0;
  SyncGate::Time timeout{0};
  bool is_first = false;
  bool is_fit = true;
  bool restores = false;
  std::shared_ptr<const Contribution> contribution;
  std::shared_ptr<const SavedQueue> saved;  // of kSave: the answer
  // Of kItem: the reader's process and stream, the ticket of its last item, and
  // that item.
  Task process;
  uint64_t stream = 0;
  int64_t ticket = WorkQueue::kNoTicket;
  WorkItem item;

  // Of kFind and kGradient: a batch's keys, and their rows, which the former
  // returns; what is added to the vector of each.
  std::vector<int64_t> keys;
  std::vector<int32_t> rows;
  double gradient = 0;
  // Of kSaveTable: the answer.
  std::shared_ptr<const SavedTable> saved_table;

  // Of kCancelUpdater: the life of the replica whose updater has failed.
  uint64_t replica_life = 0;

  // While it waits.
  SyncGate::WaitId wait = 0;

  // The answer. The gate does not use these codes.
  static constexpr int kNotFound = 5;
  static constexpr int kUnavailable = 14;
  GateStatus status;
  SyncGate::Permit permit;
  SyncGate::Quorum full;
  SyncGate::Admission admission = SyncGate::Admission::kStale;
  bool flag = false;  // whether it counts, or was advanced
  WorkQueue::Grant grant;
  Weights weights;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_CALL_H_
