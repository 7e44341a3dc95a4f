// SyncGate: who may compute, whose gradients count, and when a step is over.

#ifndef TF_SYNCREP_CC_LIB_GATE_SYNC_GATE_H_
#define TF_SYNCREP_CC_LIB_GATE_SYNC_GATE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "tf_syncrep/cc/lib/gate/gate_types.h"
#include "tf_syncrep/cc/lib/gate/ledger.h"
#include "tf_syncrep/cc/lib/gate/pace.h"
#include "tf_syncrep/cc/lib/gate/roster.h"
#include "tf_syncrep/cc/lib/gate/wait_queue.h"
#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

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
// All methods are thread-safe and none blocks. A method that has to wait takes
// a callback, which is called exactly once, without any lock held: on the
// thread that ended the wait or, if there was nothing to wait for, before the
// method returns. A wait ends when its condition holds, or by Cancel(), Open(),
// Close(), Fail(), or, if a lease ends, by Poll(), which somebody must call
// (see LeaseTimer). Nothing may wait when a gate is destroyed.
class SyncGate {
 public:
  using Time = GateTime;
  // The time on a clock that never goes back.
  using Clock = std::function<Time()>;
  // Names a wait for Cancel(); 0 is none.
  using WaitId = int64_t;
  // Stands for the number of the current generation.
  static constexpr int64_t kAnyGeneration = -1;
  // See WaitQuorum().
  static constexpr Time kSignOfLife = std::chrono::milliseconds(1);

  using Permit = GatePermit;
  using AcquireCallback = std::function<void(const GateStatus&, const Permit&)>;
  using Quorum = GateQuorum;
  using QuorumCallback = std::function<void(const GateStatus&, const Quorum&)>;
  using DrainCallback = std::function<void(const GateStatus&)>;
  // A kFirst call, at the start of a session, takes no pass. Against a closed
  // gate it succeeds with the current step, so that the worker's first Admit()
  // or Acquire() ends its training in an orderly way. But a worker that took no
  // part in the closed training, or has left it or heard of its end, may have
  // come for the next training: it waits for that, at most for start_lease.
  // Until the updater of a generation has called, a kFirst call that would have
  // to wait succeeds without a permit instead, since its caller may be the one
  // who starts the updater.
  using AcquireKind = GateAcquireKind;
  using Admission = GateAdmission;

  SyncGate(const SyncGateOptions& options, Clock clock);
  SyncGate(const SyncGate&) = delete;
  SyncGate& operator=(const SyncGate&) = delete;

  // InvalidArgument unless the numbers are positive.
  static GateStatus CheckOptions(const SyncGateOptions& options);

  // --- Worker ---

  // Waits until the round needs a gradient from this worker, and permits it.
  // The round needs one if fewer than `quorum` are admitted, fewer than
  // max(total, quorum) are admitted or permitted, and, in strict mode, the
  // worker's share, ceil(quorum / live), is not used up. Outside strict mode
  // the wait also ends when a permit of another worker is overdue, beside which
  // this worker may have a spare (see Pace). Before the first Open() it waits.
  // What this worker still held, from an earlier Acquire() or as another
  // incarnation, is given up. From then on that other incarnation is dead: its
  // calls have no effect, and its Acquire() is Aborted.
  //
  // A kNext call that finds a pass takes it instead and returns at once, with
  // the pass's step and round and without a permit.
  //
  // `terms` are the quorum and the total that the worker was made for.
  // InvalidArgument if the gate is open with others; a kFirst call first waits,
  // a lease at most, for a chief that opens it with these.
  WaitId Acquire(const GateWorker& worker, AcquireKind kind,
                 const GateTerms& terms, AcquireCallback done);

  // Whether the worker may push its gradient, computed in `round`. A worker
  // says with `is_fit` false that it will not push, because the gradient is not
  // finite, say. A permit is not needed: its lease may have ended while the
  // gradient is still one of this round. OutOfRange after Close().
  GateStatus Admit(int64_t generation, const GateWorker& worker, int64_t round,
                   bool is_fit, Admission* admission);

  // To be called after every push was acknowledged: the contribution counts,
  // also after Close(). False if its round was void by then.
  bool Commit(int64_t generation, const GateWorker& worker, int64_t round);

  // Gives back a permit, or gives up an admitted contribution, which makes the
  // round void. It has no effect if the worker holds neither.
  void Abort(int64_t generation, const GateWorker& worker, int64_t round);

  // Gives back what was granted too late for its caller: a permit, if the
  // worker still holds this very one, or a pass, which others may then take. It
  // may be called once at most.
  void ReturnPermit(const GateWorker& worker, const Permit& permit);

  // The worker takes no further part. What it has committed stays, and others
  // take over its share. A worker that acquires again is back. It has no effect
  // if the worker last acquired before Close() and the gate is open again: then
  // it leaves a training that is over, and is still expected in the new one.
  void Leave(const GateWorker& worker);

  // --- Updater ---

  // Starts a generation: voids what the last one left, ends the waits of its
  // updater as Aborted, and returns the new generation's number. Workers that
  // wait go on waiting, for permits of this generation; they hold nothing of
  // the last one. After Close() or Fail() it starts a new training, too:
  // workers that had left or expired are expected again. Otherwise it carries
  // on for a chief that was lost, and workers that have left stay away. After
  // Shutdown() it changes nothing.
  int64_t Open(int64_t step, const GateTerms& terms);

  // Adds `n` passes with the present step (see Acquire()).
  void AddPasses(int64_t n);

  // Waits for a full round, in which committed = admitted = quorum. Until
  // Advance() it returns the same round again. DeadlineExceeded after
  // `timeout`, if that is not zero; OutOfRange after Close(). Like all calls of
  // the updater it is Aborted in another generation, and FailedPrecondition
  // before the first. A round that was flushed, and not advanced, goes on,
  // since its updater gave it up. A wait of kSignOfLife at most says that the
  // updater is there, but not yet that it is ready to update.
  WaitId WaitQuorum(int64_t generation, Time timeout, QuorumCallback done);

  // The same for a round that will not fill: admits no more, and waits until
  // all admitted gradients are committed. Without gradients the round stays
  // open.
  WaitId Flush(int64_t generation, QuorumCallback done);

  // To be called after all variables were updated: ends `round`, and opens the
  // next at global step `step`. False, with no effect, if `round` is not the
  // present round. An update that was made counts even if Close() or Fail()
  // came meanwhile.
  GateStatus Advance(int64_t generation, int64_t round, int64_t step,
                     bool* advanced);

  // Waits until no contribution is in flight and no full round waits for its
  // update.
  WaitId Drain(int64_t generation, DrainCallback done);

  // Ends the waits of WaitQuorum(), Flush() and Drain() in `generation` as
  // Cancelled: the updater stops, the training may go on. A round that was
  // flushed, and is not advanced before the next WaitQuorum(), is void.
  //
  // A worker in whose process the updater has failed would wait for updates
  // that nobody makes, and would never get to start again. If `worker` names
  // it, its Acquire() is Cancelled, too, now and until the next WaitQuorum() or
  // Open(). That includes its first one, which may come only then.
  void CancelUpdater(int64_t generation, const GateWorker& worker = {});

  // Changes quorum and total, from the next round on.
  GateStatus Configure(int64_t quorum, int64_t total);

  // Ends all waits, present and future, as OutOfRange, until the next Open().
  // No effect in another generation, so that a chief cannot end its successor's
  // training, nor after Fail(): everybody should hear of the error.
  void Close(int64_t generation);

  // The same with an error. It has no effect after Close() or another Fail().
  void Fail(int64_t generation, const GateStatus& error);

  // The gate will not be used any more: ends all waits, for ever.
  void Shutdown();

  // --- Anyone ---

  // Ends the wait with a Cancelled status, and returns whether it still waited.
  bool Cancel(WaitId id);

  SyncGateStats Stats() const;

  // Ends what has outlived its lease or time-out or is overdue, and returns
  // when to call it again. No lease ends earlier, unless it begins or is
  // shortened meanwhile; if something is overdue earlier, `alarm` is called.
  Time Poll();

 private:
  // Callbacks to be called once mu_ is released.
  using Wakeups = std::vector<std::function<void()>>;
  using AcquireNode = WaitQueue::Acquires::node_type;

  struct Passes {
    Permit permit;
    int64_t num_left;
  };

  static void Run(const Wakeups& wakeups);
  static GateStatus UpdaterFailed();

  bool IsOpen() const TF_SYNCREP_REQUIRES(mu_) {
    return ledger_.generation() > 0 && end_of_waits_.ok();
  }
  bool IsGeneration(int64_t generation) const TF_SYNCREP_REQUIRES(mu_) {
    return generation == kAnyGeneration || generation == ledger_.generation();
  }
  // How many gradients of a round one worker may give.
  int64_t Share(Time now) const TF_SYNCREP_REQUIRES(mu_);
  Time UpdaterLeaseEnd() const TF_SYNCREP_REQUIRES(mu_);

  // Returns the member that acquires, which is this incarnation from now on and
  // holds nothing. Null if the incarnation is dead.
  GateMember* Enter(const GateWorker& worker, AcquireKind kind,
                    Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);

  // Puts a new wait where it belongs, or ends it.
  void Place(AcquireNode wait, Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);
  // The same for several waits, after the event that they waited for.
  void PlaceAll(WaitQueue::Acquires waits, Wakeups* wakeups)
      TF_SYNCREP_REQUIRES(mu_);
  // Whether a worker with these terms may take part.
  bool TermsAgree(const GateTerms& terms) const TF_SYNCREP_REQUIRES(mu_);
  GateStatus TermsDiffer(const GateTerms& terms) const TF_SYNCREP_REQUIRES(mu_);
  // Ends a wait for which no suitable Open() came.
  void EndEarly(AcquireNode wait, Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);
  void EndAcquire(AcquireNode wait, const GateStatus& status,
                  const Permit& permit, Wakeups* wakeups)
      TF_SYNCREP_REQUIRES(mu_);
  // Ends a wait with the status that all waits have from now on.
  void EndAcquireForAll(AcquireNode wait, const GateStatus& status,
                        Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);
  void EndUpdaterWaits(const GateStatus& status, Wakeups* wakeups)
      TF_SYNCREP_REQUIRES(mu_);
  void EndTraining(const GateStatus& status, Wakeups* wakeups)
      TF_SYNCREP_REQUIRES(mu_);

  // Ends every wait whose condition holds now, and says what has happened.
  void Pump(Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);
  bool PumpUpdater(UpdaterWait* wait, Wakeups* wakeups)
      TF_SYNCREP_REQUIRES(mu_);
  void PumpAcquires(Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);
  // Gives idle workers permits beside those that are overdue.
  void GrantSpares(Time now, Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);
  void Grant(WaitQueue::Acquires::iterator wait, GateAccount* overdue, Time now,
             Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);
  Permit TakePass(WaitId id) TF_SYNCREP_REQUIRES(mu_);
  // Whether an idle worker may have a spare once a permit is overdue.
  bool WantsSpares() const TF_SYNCREP_REQUIRES(mu_);
  // Whether a push that takes too long keeps somebody waiting.
  bool WaitsForPushes() const TF_SYNCREP_REQUIRES(mu_);
  // When a permit or a push will be overdue for somebody who waits.
  Time NextOverdue(Time now) const TF_SYNCREP_REQUIRES(mu_);
  void Report(Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);
  std::string Describe(const GateEvent& event) const TF_SYNCREP_REQUIRES(mu_);

  // Why a call of the updater of `generation` is refused, if it is.
  GateStatus CheckGeneration(int64_t generation) const TF_SYNCREP_REQUIRES(mu_);
  WaitId AddUpdaterWait(int64_t generation, UpdaterWait::Kind kind,
                        Time timeout, QuorumCallback done);
  bool CancelUpdaterWait(WaitId id, const GateStatus& status, Wakeups* wakeups)
      TF_SYNCREP_REQUIRES(mu_);
  void ExpireWorkers(Time now) TF_SYNCREP_REQUIRES(mu_);
  void ExpirePushes(Time now) TF_SYNCREP_REQUIRES(mu_);
  void ExpireUpdater(Time now, Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);
  void ExpireEarly(Time now, Wakeups* wakeups) TF_SYNCREP_REQUIRES(mu_);

  const bool strict_;
  const bool spares_;
  const Time updater_lease_;
  const Clock clock_;
  const std::function<void()> alarm_;
  const std::function<void(const std::string&)> log_;
  const std::function<void(const GateEvent&)> observer_;

  mutable Mutex mu_;
  Ledger ledger_ TF_SYNCREP_GUARDED_BY(mu_);
  Roster roster_ TF_SYNCREP_GUARDED_BY(mu_);
  Pace pace_ TF_SYNCREP_GUARDED_BY(mu_);
  WaitQueue queue_ TF_SYNCREP_GUARDED_BY(mu_);

  // The terms of the last Open().
  int64_t opened_quorum_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  int64_t opened_total_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  // The status of all waits from Close() or Fail() to the next Open().
  GateStatus end_of_waits_ TF_SYNCREP_GUARDED_BY(mu_);
  bool shut_down_ TF_SYNCREP_GUARDED_BY(mu_) = false;
  Time updater_seen_ TF_SYNCREP_GUARDED_BY(mu_){0};
  // Whether the updater has waited for a round, or advanced, since Open().
  bool updater_started_ TF_SYNCREP_GUARDED_BY(mu_) = false;
  // The worker whose waits are in vain: see CancelUpdater(). Its device is
  // empty if there is none.
  GateWorker failed_with_ TF_SYNCREP_GUARDED_BY(mu_);
  // None of them is empty.
  std::list<Passes> passes_ TF_SYNCREP_GUARDED_BY(mu_);
  // The round and the share at the last Pump(): see WaitQueue::sated.
  int64_t pumped_round_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  int64_t pumped_share_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  // The time that Poll() last returned.
  Time next_poll_ TF_SYNCREP_GUARDED_BY(mu_) = Time::max();
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_SYNC_GATE_H_
