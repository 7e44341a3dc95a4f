// Who waits for what at a gate.

#ifndef TF_SYNCREP_CC_LIB_GATE_WAIT_QUEUE_H_
#define TF_SYNCREP_CC_LIB_GATE_WAIT_QUEUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "tf_syncrep/cc/lib/gate/gate_types.h"
#include "tf_syncrep/cc/lib/gate/roster.h"

namespace tf_syncrep {

// A full round and its number of gradients.
struct GateQuorum {
  int64_t round = 0;
  int64_t num_gradients = 0;
};

enum class GateAcquireKind {
  kFirst,  // at the start of a session
  kNext,
};

// A wait of a worker for a permit.
struct AcquireWait {
  GateMember* member;
  GateAcquireKind kind;
  GateTerms terms;
  GateTime since;
  GateTime deadline;  // if it waits for an opening; otherwise max()
  std::function<void(const GateStatus&, const GatePermit&)> done;
};

// A wait of an updater, or of its chief, for a round.
struct UpdaterWait {
  enum class Kind { kQuorum, kFlush, kDrain };

  Kind kind;
  GateTime deadline;  // max() if there is none
  std::function<void(const GateStatus&, const GateQuorum&)> done;
};

// The waits of a gate, by number. Each number is given once, in order of
// arrival. The queue decides nothing.
class WaitQueue {
 public:
  using Acquires = std::map<int64_t, AcquireWait>;
  using Updaters = std::map<int64_t, UpdaterWait>;

  int64_t NewId() { return next_id_++; }

  // Waits of workers that may get a permit.
  Acquires ready;
  // Waits of workers that have given their share. They can get no permit while
  // the round and the share stay as they are. They are kept apart, so that a
  // call need not look at a thousand of them for nothing.
  Acquires sated;
  // Waits for an opening: for the first one, or for one with the worker's
  // terms.
  Acquires early;
  Updaters updaters;

  // Removes a wait from the map that it is in, and returns it; empty if it is
  // in none.
  Acquires::node_type ExtractAcquire(int64_t id);
  // Removes and returns all waits for a permit, ready or sated.
  Acquires TakeForPermits();
  bool HasFlush() const;
  // The next deadline of any wait.
  GateTime NextDeadline() const;

 private:
  int64_t next_id_ = 1;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_WAIT_QUEUE_H_
