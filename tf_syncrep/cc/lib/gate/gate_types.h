// What a SyncGate is told, and what it tells.

#ifndef TF_SYNCREP_CC_LIB_GATE_GATE_TYPES_H_
#define TF_SYNCREP_CC_LIB_GATE_GATE_TYPES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tf_syncrep {

// A point on a clock that never goes back, or a length of time.
using GateTime = std::chrono::nanoseconds;

// The result of a call: a canonical status code (0 is OK) and a message.
struct GateStatus {
  enum Code : int {
    kOk = 0,
    kCancelled = 1,
    kInvalidArgument = 3,
    kDeadlineExceeded = 4,
    kFailedPrecondition = 9,
    kAborted = 10,
    kOutOfRange = 11,  // the end of input: training is over
  };

  int code = kOk;
  std::string message;

  bool ok() const { return code == kOk; }
};

// One life of a task: TensorFlow's name of its device, and the number that a
// server draws whenever it starts.
struct GateWorker {
  std::string device;
  uint64_t incarnation = 0;

  bool operator==(const GateWorker& other) const {
    return device == other.device && incarnation == other.incarnation;
  }
};

// Permission to compute a gradient of a round.
struct GatePermit {
  int64_t generation = 0;
  int64_t round = 0;
  int64_t step = 0;
  // Distinguishes this permit from all others, even of the same worker and
  // round. It is negative for a pass, and 0 for leave to go on without a
  // permit.
  int64_t number = 0;
};

// What becomes of a gradient.
enum class GateAdmission {
  kAdmitted,
  kLate,      // the round has its quorum
  kStale,     // the round is over, or this worker has given its share
  kRejected,  // the worker itself found it unfit
};

// What a worker is doing, as far as the gate knows.
enum class GatePhase : int {
  kIdle = 0,       // between a commit and the next acquire, or gone
  kWaiting = 1,    // for a permit
  kComputing = 2,  // from a grant to the admission
  kPushing = 3,    // from an admission to the commit
};

// Something that has happened in a gate, for logs and checkers.
struct GateEvent {
  enum class Kind {
    kOpened,     // `value` is the step
    kPermitted,  // `value` is the permit's number
    kSpare,      // the same, for a permit beside one that is overdue
    kReleased,   // a permit was given up
    kAdmitted,
    kLate,
    kStale,
    kRejected,
    kCommitted,
    kExpired,   // a lease has ended; `value` is the silence in nanoseconds
    kVoid,      // `value` is the number of gradients that are discarded
    kAdvanced,  // `value` is the number of gradients that were applied
    kEnded,     // closed or failed; `value` is the status code
  };

  Kind kind;
  int64_t generation = 0;
  int64_t round = 0;
  int64_t value = 0;
  // Set for events of a worker; otherwise empty and 0.
  std::string device;
  uint64_t incarnation = 0;
  // The reason, for people to read; often empty.
  std::string message;
};

struct SyncGateOptions {
  // Gradients that make up an update.
  int64_t quorum = 1;
  // Workers that take part; those above the quorum are backups.
  int64_t total = 1;
  // How long a worker may be silent. A worker that waits is not silent. See
  // Roster for how longer silences are learnt.
  GateTime lease = std::chrono::seconds(60);
  // The same for a worker's first step, while it is not known from others how
  // long that may take, and for workers never heard of.
  GateTime start_lease = std::chrono::seconds(600);
  // How long the updater may be silent before all waits fail; zero means for
  // ever.
  GateTime updater_lease{0};
  // In strict mode each live worker gives its share of a round and no more. In
  // work-conserving mode fast workers give more, and no worker stays idle
  // because of an overdue permit (see Pace).
  bool strict = true;
  // Whether permits can be overdue in work-conserving mode. If not, others wait
  // for a slow worker until its lease ends; then every gradient counts, as long
  // as nothing fails and there are no backups.
  bool spares = true;
  // Whether in work-conserving mode, too, each worker gives its share and no
  // more until all workers have been heard of, for at most a lease from the
  // opening. Otherwise a short training might be over before the process of
  // some worker is up.
  bool gathers = false;
  // The numbers of the first round and of the first generation, at least 1.
  int64_t first_round = 0;
  int64_t first_generation = 1;
  // Called, without a lock held, when Poll() has to be called earlier than it
  // last said.
  std::function<void()> alarm;
  // Called with one line, without a lock held, on what holds up or ends rounds.
  std::function<void(const std::string&)> log;
  // Called with every event, in order, under the gate's lock; it must not call
  // the gate.
  std::function<void(const GateEvent&)> observer;
};

// What the chief may change with each generation. Zero leaves a value as it
// was.
struct GateTerms {
  int64_t quorum = 0;
  int64_t total = 0;
  GateTime lease{0};
  GateTime start_lease{0};
};

struct GateWorkerStats {
  std::string device;
  int64_t contributed = 0;  // committed gradients
  int64_t late = 0;         // dropped: the round was full
  int64_t stale = 0;        // dropped: the round was over
  int64_t rejected = 0;     // dropped: the worker itself found it unfit
  int64_t voided = 0;       // committed, then discarded with its round
  int64_t expired = 0;      // permits and contributions that outlived the lease
  int64_t spares = 0;       // permits that it got beside an overdue one
  GateTime waited{0};       // in Acquire()
  // By how much rounds ended later than they would have without its gradient.
  GateTime held_up{0};
  bool live = false;
  GatePhase phase = GatePhase::kIdle;
  GateTime phase_time{0};  // since it began
};

// At any time
//   admitted  = committed + aborted + in_flight,
//   committed = applied + voided + pending,
//   applied   = the sum over all updates of their numbers of gradients,
//   rounds    = updates + voids.
// Sums run over the gate's whole life.
struct SyncGateStats {
  int64_t generation = 0;
  bool closed = false;  // closed or failed since the last Open()
  int64_t round = 0;
  int64_t step = 0;
  int64_t quorum = 0;
  int64_t total = 0;
  int64_t live = 0;
  int64_t rounds = 0;
  int64_t updates = 0;
  int64_t voids = 0;
  int64_t admitted = 0;
  int64_t committed = 0;
  int64_t aborted = 0;
  int64_t in_flight = 0;
  int64_t applied = 0;
  int64_t voided = 0;
  int64_t pending = 0;
  int64_t late = 0;
  int64_t stale = 0;
  int64_t rejected = 0;
  int64_t expired = 0;
  int64_t spares = 0;
  std::vector<GateWorkerStats> workers;  // by device name
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_GATE_TYPES_H_
