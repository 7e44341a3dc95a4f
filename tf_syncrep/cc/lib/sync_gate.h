// SyncGate: who may compute, whose gradient counts, when a step is over.

#ifndef TF_SYNCREP_CC_LIB_SYNC_GATE_H_
#define TF_SYNCREP_CC_LIB_SYNC_GATE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tf_syncrep {

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

// One life of a task: TensorFlow's device name and the number that it draws at
// each start of a server.
struct GateWorker {
  std::string device;
  uint64_t incarnation;
};

struct SyncGateOptions {
  // Gradients that make up an update.
  int64_t quorum = 1;
  // Workers that take part; those above the quorum are backups.
  int64_t total = 1;
  // How long a worker may be silent. A worker that waits is not silent.
  std::chrono::nanoseconds lease = std::chrono::seconds(60);
  // The same for a worker's first step, while it is not known from others how
  // long that may take (see SyncGate::FirstStepLease()), and for workers never
  // heard of.
  std::chrono::nanoseconds start_lease = std::chrono::seconds(600);
  // How long the updater may be silent before all waits fail; zero: for ever.
  std::chrono::nanoseconds updater_lease{0};
  // In strict mode each live worker gives its share of a round and no more. In
  // work-conserving mode whoever is fast gives more.
  bool strict = true;
  // The numbers of the first round and of the first generation, at least 1.
  int64_t first_round = 0;
  int64_t first_generation = 1;
};

// What the chief may choose anew for each generation. Zero: as it was.
struct GateTerms {
  int64_t quorum = 0;
  int64_t total = 0;
  std::chrono::nanoseconds lease{0};
  std::chrono::nanoseconds start_lease{0};
};

struct GateWorkerStats {
  std::string device;
  int64_t contributed = 0;  // committed gradients
  int64_t late = 0;         // dropped: the round was full
  int64_t stale = 0;        // dropped: the round was over
  int64_t rejected = 0;     // dropped: the worker itself found it unfit
  int64_t voided = 0;       // committed, then discarded with its round
  int64_t expired = 0;      // permits and contributions that outlived the lease
  std::chrono::nanoseconds waited{0};  // in Acquire()
  bool live = false;
};

// At any time
//   admitted  = committed + aborted + in_flight,
//   committed = applied + voided + pending,
//   applied   = the sum over all updates of their numbers of gradients,
//   rounds    = updates + voids.
// Sums run over the gate's whole life.
struct SyncGateStats {
  int64_t generation = 0;
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
  std::vector<GateWorkerStats> workers;  // by device name
};

// SyncGate keeps the ledger of synchronous training, so that nobody waits for
// somebody who will not come, nothing is counted twice, and every variable of
// an update averages the same set of gradients.
//
// Training goes in rounds. In a round a worker acquires a permit, reads the
// variables, computes, has its gradient admitted, pushes it to the accumulators
// of all variables, and commits. When `quorum` contributions are committed the
// updater applies them and advances to the next round. Rounds only count up,
// over the whole life of the gate. A contribution that was admitted and will
// not be committed may have reached some accumulators and not others: the round
// is void, and the next one begins with the same variables. A generation is the
// life of one updater, from one Open() to the next.
//
// All methods are thread-safe and none blocks: what has to wait takes a
// callback, which is called exactly once, without any lock held, on the thread
// that ended the wait or, where there was nothing to wait for, before the
// method returns. Waits are ended by what they wait for, by Cancel(), Open(),
// Close(), Fail(), and, where leases are concerned, by Poll(), which somebody
// must call (see LeaseTimer). When a gate is destroyed nothing may wait.
class SyncGate {
 public:
  using Time = std::chrono::nanoseconds;
  // The time on a clock that never goes back.
  using Clock = std::function<Time()>;
  // Names a wait for Cancel(); 0 is none.
  using WaitId = int64_t;
  // In the place of a generation's number: whichever there is.
  static constexpr int64_t kAnyGeneration = -1;

  struct Permit {
    int64_t generation = 0;
    int64_t round = 0;
    int64_t step = 0;
    // Tells it from all others, of the same worker and round too. 0: a pass, or
    // leave to go on without a permit.
    WaitId number = 0;
  };
  using AcquireCallback = std::function<void(const GateStatus&, const Permit&)>;

  // A full round and its number of gradients.
  struct Quorum {
    int64_t round = 0;
    int64_t num_gradients = 0;
  };
  using QuorumCallback = std::function<void(const GateStatus&, const Quorum&)>;
  using DrainCallback = std::function<void(const GateStatus&)>;

  enum class AcquireKind {
    // At the start of a session: takes no pass, and against a closed gate
    // succeeds with the current step, so that the worker's first Admit() or
    // Acquire() ends its training in an orderly way. A worker that took no part
    // in what was closed, or has left it or heard of its end, may have come for
    // the next training, though: it waits for that, start_lease at most. Until
    // the updater of a generation has called, it succeeds without a permit
    // where it would have to wait: the caller may be the one who starts the
    // updater.
    kFirst,
    kNext,
  };

  enum class Admission {
    kAdmitted,
    kLate,      // the round has its quorum
    kStale,     // the round is over, or this worker has given its share
    kRejected,  // the worker asked for it
  };

  SyncGate(const SyncGateOptions& options, Clock clock);
  SyncGate(const SyncGate&) = delete;
  SyncGate& operator=(const SyncGate&) = delete;

  // InvalidArgument unless the numbers are positive.
  static GateStatus CheckOptions(const SyncGateOptions& options);

  // --- Worker ---

  // Waits until the round needs a gradient from this worker, and permits it:
  // fewer than `quorum` are admitted, fewer than max(total, quorum) admitted or
  // permitted, and in strict mode the worker's share, ceil(quorum / live), is
  // not used up. Before the first Open() it waits. What this worker still held,
  // from an earlier Acquire() or as another incarnation, is given up. From then
  // on that other incarnation is dead: what it still calls has no effect, and
  // its Acquire() is Aborted.
  //
  // A kNext call that finds a pass takes it instead and returns at once, with
  // the pass's step and round and without a permit.
  //
  // `terms` are the quorum and the total that the worker was made for.
  // InvalidArgument if the gate is open with others; a kFirst call first waits,
  // a lease at most, for a chief that opens it with these.
  WaitId Acquire(const GateWorker& worker, AcquireKind kind,
                 const GateTerms& terms, AcquireCallback done);

  // Whether the worker may push its gradient, computed in `round`. When `fit`
  // is false the worker says that it will not (non-finite, say). A permit is
  // not needed: its lease may have ended, and the gradient still be one of this
  // round. OutOfRange after Close().
  GateStatus Admit(int64_t generation, const GateWorker& worker, int64_t round,
                   bool fit, Admission* admission);

  // After every push was acknowledged: the contribution counts, also after
  // Close(). False if its round was void by then.
  bool Commit(int64_t generation, const GateWorker& worker, int64_t round);

  // Gives back a permit, or gives up an admitted contribution, which makes the
  // round void. No effect where the worker holds neither.
  void Abort(int64_t generation, const GateWorker& worker, int64_t round);

  // Gives back the permit whose grant came too late for its caller, if the
  // worker still holds this very one.
  void ReturnPermit(const GateWorker& worker, const Permit& permit);

  // The worker takes no further part. What it committed stays; others take over
  // its share. A worker that acquires again is back. No effect where the worker
  // last acquired before Close() and the gate is open again: it leaves what is
  // over, and is still expected.
  void Leave(const GateWorker& worker);

  // --- Updater ---

  // Starts a generation: voids what the last one left, ends its waits as
  // Aborted, and returns the new generation's number. After Close() or Fail()
  // it starts a new training, too: workers that had left or expired are
  // expected again. Without them it carries on for a chief that was lost, and
  // who had left stays away.
  int64_t Open(int64_t step, const GateTerms& terms);

  // Lays out `n` passes with the present step (see Acquire()).
  void AddPasses(int64_t n);

  // Waits for a full round: committed = admitted = quorum. Until Advance() it
  // returns the same round again. DeadlineExceeded after `timeout`, if that is
  // not zero; OutOfRange after Close(). Like all that the updater calls it is
  // Aborted in another generation, and FailedPrecondition before the first.
  WaitId WaitQuorum(int64_t generation, Time timeout, QuorumCallback done);

  // The same for a round that will not fill: admits no more, and waits until
  // what was admitted is committed. With no gradients the round stays open.
  WaitId Flush(int64_t generation, QuorumCallback done);

  // After all variables were updated: ends `round`, opens the next at global
  // step `step`. False, with no effect, if `round` is not the present round.
  // An update that was made counts, though Close() or Fail() came meanwhile.
  GateStatus Advance(int64_t generation, int64_t round, int64_t step,
                     bool* advanced);

  // Waits until no contribution is in flight and no full round unapplied.
  WaitId Drain(int64_t generation, DrainCallback done);

  // Ends the waits of WaitQuorum(), Flush() and Drain() in `generation` as
  // Cancelled, and no others: the updater stops, the training may go on.
  void CancelUpdater(int64_t generation);

  // Changes quorum and total, from the next round on.
  GateStatus Configure(int64_t quorum, int64_t total);

  // Ends all waits, present and future, as OutOfRange, until the next Open().
  // No effect in another generation, so that a chief cannot end its successor's
  // training, nor after Fail(): the error is what everybody should hear of.
  void Close(int64_t generation);

  // The same with an error. No effect after Close() or another Fail().
  void Fail(int64_t generation, const GateStatus& error);

  // The gate is no longer to be used: ends whatever waits, for ever.
  void Shutdown();

  // --- Anyone ---

  // Ends the wait with a Cancelled status, if it still waits; whether it did.
  bool Cancel(WaitId id);

  SyncGateStats Stats() const;

  // Ends what has outlived its lease or time-out, and returns when to call
  // again: no lease ends before, unless it begins or is shortened meanwhile.
  Time Poll();

 private:
  struct Worker {
    enum class State { kIdle, kPermitted, kAdmitted };
    enum class Presence {
      kExpected,  // heard of in a training that is over
      kLive,
      kExpired,
      kLeft,
    };

    uint64_t incarnation = 0;
    std::vector<uint64_t> dead_incarnations;
    // kPermitted and kAdmitted are about `round`. What is of an earlier round
    // than the present one counts for nothing any more.
    State state = State::kIdle;
    int64_t round = 0;
    WaitId permit_number = 0;  // of kPermitted
    // How long its pushes may last: see PushLease().
    Time admitted_at{0};
    Time longest_push{0};
    int num_expired_pushes = 0;  // since its last commit
    // Contributions committed in `contributed_round`.
    int64_t contributed_round = -1;
    int64_t contributed_in_round = 0;
    bool started = false;  // has been through a first Admit()
    int64_t timed_in = 0;  // the generation in which its first step was timed
    // Has acquired in the present training, has not left it, and not been told
    // that it is over.
    bool takes_part = false;
    Presence presence = Presence::kExpected;
    WaitId waiting = 0;  // its wait in Acquire()
    Time last_seen{0};
    GateWorkerStats stats;
  };
  using WorkerMap = std::map<std::string, Worker>;

  struct AcquireWait {
    Worker* worker;  // workers are never removed
    AcquireKind kind;
    GateTerms terms;
    Time since;
    Time deadline;  // of one that waits for an Open(); Time::max(): none
    AcquireCallback done;
  };
  using AcquireWaits = std::map<WaitId, AcquireWait>;  // in order of arrival

  struct UpdaterWait {
    enum class Kind { kQuorum, kFlush, kDrain };

    Kind kind;
    Time deadline;  // Time::max(): none
    QuorumCallback done;
  };

  struct Passes {
    Permit permit;
    int64_t num_left;
  };

  // Callbacks to be called once mu_ is released.
  using Wakeups = std::vector<std::function<void()>>;
  static void Run(const Wakeups& wakeups);

  // All of the following need mu_.

  bool IsOpen() const { return generation_ > 0 && end_of_waits_.ok(); }
  int64_t NumAdmitted() const { return in_flight_ + committed_; }
  bool RoundIsFull() const { return in_flight_ == 0 && committed_ == quorum_; }
  // Whether anybody at all may still start computing in this round.
  bool RoundHasRoom() const;
  int64_t NumLive() const;
  int64_t Share() const;

  int64_t ContributedInRound(const Worker& worker) const;
  bool HasGivenItsShare(const Worker& worker) const;
  bool HoldsPermit(const Worker& worker) const;
  bool IsInFlight(const Worker& worker) const;
  bool IsPresent(int64_t generation, int64_t round) const {
    return IsOpen() && generation == generation_ && round == round_;
  }
  bool IsGeneration(int64_t generation) const {
    return generation == kAnyGeneration || generation == generation_;
  }
  // How long a worker may take over its pushes: twice the longest that it was
  // seen to need, and from one that outlived this to the next commit twice as
  // long each time. Else a worker with slow pushes would void every round.
  Time PushLease(const Worker& worker) const;
  // How long a worker may take over its first step, in which functions may be
  // compiled: the start lease, until as many workers have been through theirs
  // in this generation as are in it now. Then it is four times the longest of
  // those, within the lease and the start lease. Else a worker that dies in its
  // first step would hold up a round for the start lease.
  Time FirstStepLease() const;
  // Whether the worker computes its first gradient, or is dead.
  static bool IsInFirstStep(const Worker& worker) {
    return IsLive(worker) && !worker.started && worker.waiting == 0;
  }
  Time LeaseEnd(const Worker& worker, Time first_step_lease) const;
  Time UpdaterLeaseEnd() const;
  static bool IsLive(const Worker& worker) {
    return worker.presence == Worker::Presence::kLive;
  }

  // Null if it is not known or known as another incarnation.
  Worker* Find(const GateWorker& worker);
  // The known worker behind a call, its lease renewed; null as Find().
  Worker* FindAndRenew(const GateWorker& worker);
  void Renew(Worker* worker);
  // Its gradient is there, and the lease not renewed yet: if it is its first,
  // notes how long it was silent.
  void TimeFirstStep(Worker* worker);
  // The worker that acquires, of this incarnation from now on, holding nothing.
  // Null if the incarnation is a dead one.
  Worker* Enter(const GateWorker& worker, AcquireKind kind, Wakeups* wakeups);
  void SetPresence(Worker::Presence presence, Worker* worker);
  // What becomes of a gradient of the present round.
  Admission Judge(const Worker& worker, bool fit) const;
  void Count(Admission admission, Worker* worker);
  // Gives up a permit or, with the whole round, a contribution in flight.
  void Release(Worker* worker);
  void StartRound();
  void VoidRound();
  // Forgets who takes part.
  void StartTraining();
  void SetTerms(const GateTerms& terms);

  // Puts a new wait where it belongs, or ends it.
  void Place(AcquireWaits::node_type wait, Wakeups* wakeups);
  // The same for those that were early, after what they waited for.
  void PlaceEarly(Wakeups* wakeups);
  // Whether a worker with these terms may take part.
  bool TermsAgree(const GateTerms& terms) const;
  GateStatus TermsDiffer(const GateTerms& terms) const;
  // Ends a wait that found no Open() to its liking.
  void EndEarly(AcquireWaits::node_type wait, Wakeups* wakeups);
  // Takes a wait out of where it is; empty if it is not there.
  AcquireWaits::node_type ExtractAcquire(WaitId id);
  void EndAcquire(AcquireWaits::node_type wait, const GateStatus& status,
                  const Permit& permit, Wakeups* wakeups);
  // Ends it with what holds for all waits from now on.
  void EndAcquireForAll(AcquireWaits::node_type wait, const GateStatus& status,
                        Wakeups* wakeups);
  void EndAcquires(const GateStatus& status, Wakeups* wakeups);
  void EndUpdaterWaits(const GateStatus& status, Wakeups* wakeups);
  void EndTraining(const GateStatus& status, Wakeups* wakeups);
  // Ends every wait whose condition holds now.
  void Pump(Wakeups* wakeups);
  bool PumpUpdater(UpdaterWait* wait, Wakeups* wakeups);
  void PumpAcquires(Wakeups* wakeups);
  Permit TakePass();

  // What stands against a call of the updater of `generation`, if anything.
  GateStatus CheckGeneration(int64_t generation) const;
  WaitId AddUpdaterWait(int64_t generation, UpdaterWait::Kind kind,
                        Time timeout, QuorumCallback done);
  bool CancelUpdaterWait(WaitId id, const GateStatus& status, Wakeups* wakeups);
  bool FlushWaits() const;
  void RenewUpdater();
  void ExpireWorkers(Time now);
  void ExpireUpdater(Time now, Wakeups* wakeups);

  const bool strict_;
  const Time updater_lease_;
  const int64_t first_generation_;
  const Clock clock_;

  mutable std::mutex mu_;  // guards everything below

  int64_t quorum_;
  int64_t total_;
  int64_t next_quorum_;  // take the place of the two at the next round
  int64_t next_total_;
  int64_t opened_quorum_ = 0;  // of the last Open()
  int64_t opened_total_ = 0;
  Time lease_;
  Time start_lease_;

  int64_t generation_ = 0;   // 0: never opened
  GateStatus end_of_waits_;  // from Close() or Fail() to the next Open()
  bool shut_down_ = false;
  int64_t round_;
  int64_t step_ = 0;
  Time opened_at_{0};
  Time updater_seen_{0};
  bool updater_started_ = false;  // has called since Open()
  bool flushing_ = false;         // the round admits no more

  // Workers that were through their first step in this generation: see
  // FirstStepLease().
  int64_t num_first_steps_ = 0;
  Time longest_first_step_{0};

  // Of the present round.
  int64_t permitted_ = 0;
  int64_t in_flight_ = 0;
  int64_t committed_ = 0;

  std::list<Passes> passes_;  // none of them empty

  WorkerMap workers_;
  int64_t num_heard_of_ = 0;  // workers that are not merely expected
  int64_t num_live_ = 0;      // those of them that are live
  bool unheard_of_expired_ = false;

  WaitId next_wait_id_ = 1;
  AcquireWaits acquires_;
  // Those of workers that have given their share. They can have no permit while
  // the round and the share, as Pump() last saw them, stay as they are. Kept
  // apart so that a call does not look at a thousand of them in vain.
  AcquireWaits sated_acquires_;
  // Those that wait for an Open(), the first or one with their terms.
  AcquireWaits early_acquires_;
  int64_t pumped_round_ = 0;
  int64_t pumped_share_ = 0;
  std::map<WaitId, UpdaterWait> updater_waits_;

  SyncGateStats sums_;  // its sums; the rest is filled in by Stats()
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_SYNC_GATE_H_
