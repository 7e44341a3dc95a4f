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

// A worker that waits for a permit.
struct AcquireWait {
  GateMember* member;
  GateAcquireKind kind;
  GateTerms terms;
  GateTime since;
  GateTime deadline;  // of one that waits for an opening; max(): none
  std::function<void(const GateStatus&, const GatePermit&)> done;
};

// An updater, or its chief, that waits for a round.
struct UpdaterWait {
  enum class Kind { kQuorum, kFlush, kDrain };

  Kind kind;
  GateTime deadline;  // max(): none
  std::function<void(const GateStatus&, const GateQuorum&)> done;
};

// The waits of a gate, by number: a number is given once, and in order of
// arrival. It decides nothing.
class WaitQueue {
 public:
  using Acquires = std::map<int64_t, AcquireWait>;
  using Updaters = std::map<int64_t, UpdaterWait>;

  int64_t NewId() { return next_id_++; }

  // Workers that may get a permit.
  Acquires ready;
  // Those that have given their share. They can get no permit while the round
  // and the share stay as they are. Kept apart, so that a call need not look at
  // a thousand of them for nothing.
  Acquires sated;
  // Those that wait for an opening, the first or one with their terms.
  Acquires early;
  Updaters updaters;

  // Takes a wait out of where it is; empty if it is not there.
  Acquires::node_type ExtractAcquire(int64_t id);
  // All that wait for a permit, ready or sated.
  Acquires TakeForPermits();
  bool HasFlush() const;
  // When the next deadline is.
  GateTime NextDeadline() const;

 private:
  int64_t next_id_ = 1;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_WAIT_QUEUE_H_
