#include "tf_syncrep/cc/lib/gate/sync_gate.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace tf_syncrep {
namespace {

constexpr SyncGate::Time kNever = SyncGate::Time::max();

GateStatus EndOfInput() {
  return {GateStatus::kOutOfRange,
          "The gate is closed: the chief has ended the training."};
}

GateStatus CheckPositive(const char* name, int64_t value) {
  if (value < 1) {
    return {GateStatus::kInvalidArgument,
            std::string(name) +
                " must be at least 1. Received: " + std::to_string(value)};
  }
  return {};
}

GateStatus FirstError(std::initializer_list<GateStatus> statuses) {
  for (const GateStatus& status : statuses) {
    if (!status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace

SyncGate::SyncGate(const SyncGateOptions& options, Clock clock)
    : strict_(options.strict),
      spares_(options.spares),
      updater_lease_(options.updater_lease),
      clock_(std::move(clock)),
      alarm_(options.alarm),
      log_(options.log),
      observer_(options.observer),
      ledger_(options),
      roster_(options) {}

GateStatus SyncGate::CheckOptions(const SyncGateOptions& options) {
  return FirstError(
      {CheckPositive("replicas_to_aggregate", options.quorum),
       CheckPositive("total_num_replicas", options.total),
       CheckPositive("lease_secs (in ns)", options.lease.count()),
       CheckPositive("start_secs (in ns)", options.start_lease.count())});
}

// --- Worker ---

SyncGate::WaitId SyncGate::Acquire(const GateWorker& worker, AcquireKind kind,
                                   const GateTerms& terms,
                                   AcquireCallback done) {
  Wakeups wakeups;
  WaitId id;
  {
    const MutexLock lock(mu_);
    id = queue_.NewId();
    GateMember* caller = Enter(worker, kind, &wakeups);
    if (caller == nullptr) {
      wakeups.push_back([done = std::move(done), device = worker.device] {
        done({GateStatus::kAborted,
              "Another start of " + device + " took this one's place."},
             {});
      });
    } else {
      roster_.SetWaiting(id, caller);
      WaitQueue::Acquires wait;
      wait.insert(
          {id, {caller, kind, terms, clock_(), kNever, std::move(done)}});
      PlaceAll(std::move(wait), &wakeups);
    }
    Pump(&wakeups);
  }
  Run(wakeups);
  return id;
}

GateStatus SyncGate::Admit(int64_t generation, const GateWorker& worker,
                           int64_t round, bool is_fit, Admission* admission) {
  Wakeups wakeups;
  {
    const MutexLock lock(mu_);
    const Time now = clock_();
    GateMember* caller = roster_.FindAndRenew(worker, now);
    const bool ends_step = caller != nullptr &&
                           caller->permit.generation == generation &&
                           caller->permit.round == round;
    if (ends_step) {
      if (caller->phase == GatePhase::kComputing) {
        pace_.LearnStep(now - caller->phase_since, !caller->started);
      }
      roster_.EndStep(generation, generation == ledger_.generation(), now,
                      caller);
      if (caller->phase == GatePhase::kComputing) {
        Roster::SetPhase(GatePhase::kIdle, now, caller);
      }
    }
    if (!end_of_waits_.ok()) {
      if (caller != nullptr) {
        caller->takes_part = false;
      }
      return end_of_waits_;
    }
    const bool may_give =
        caller != nullptr && caller->is_live() && caller->waiting == 0 &&
        ledger_.ContributedInRound(caller->account) < Share(now);
    *admission = ledger_.Admit(generation, round, may_give, is_fit, now,
                               caller == nullptr ? nullptr : &caller->account);
    if (*admission == Admission::kAdmitted) {
      Roster::SetPhase(GatePhase::kPushing, now, caller);
    }
    Pump(&wakeups);
  }
  Run(wakeups);
  return {};
}

bool SyncGate::Commit(int64_t generation, const GateWorker& worker,
                      int64_t round) {
  Wakeups wakeups;
  bool counts = false;
  {
    const MutexLock lock(mu_);
    const Time now = clock_();
    GateMember* caller = roster_.FindAndRenew(worker, now);
    if (caller == nullptr) {
      return false;
    }
    if (caller->phase == GatePhase::kPushing &&
        caller->permit.generation == generation &&
        caller->permit.round == round) {
      pace_.LearnPush(now - caller->phase_since);
      Roster::EndSilence(now, caller);
      Roster::SetPhase(GatePhase::kIdle, now, caller);
    }
    counts = ledger_.Commit(generation, round, now, &caller->account);
    Pump(&wakeups);
  }
  Run(wakeups);
  return counts;
}

void SyncGate::Abort(int64_t generation, const GateWorker& worker,
                     int64_t round) {
  Wakeups wakeups;
  {
    const MutexLock lock(mu_);
    const Time now = clock_();
    GateMember* caller = roster_.FindAndRenew(worker, now);
    if (caller == nullptr) {
      return;
    }
    if (ledger_.IsPresent(generation, round)) {
      ledger_.Release("gave its gradient up while it pushed", now,
                      &caller->account);
      Roster::SetPhase(GatePhase::kIdle, now, caller);
    }
    Pump(&wakeups);
  }
  Run(wakeups);
}

void SyncGate::ReturnPermit(const GateWorker& worker, const Permit& permit) {
  Wakeups wakeups;
  {
    const MutexLock lock(mu_);
    const Time now = clock_();
    GateMember* caller = roster_.Find(worker);
    if (permit.number < 0) {
      if (permit.generation == ledger_.generation()) {
        passes_.push_front({permit, 1});
      }
      if (caller != nullptr && caller->permit.number == permit.number &&
          caller->phase == GatePhase::kComputing) {
        Roster::SetPhase(GatePhase::kIdle, now, caller);
      }
    } else if (caller != nullptr && ledger_.HoldsPermit(caller->account) &&
               caller->account.permit_number == permit.number) {
      ledger_.Release("was cancelled", now, &caller->account);
      Roster::SetPhase(GatePhase::kIdle, now, caller);
    }
    Pump(&wakeups);
  }
  Run(wakeups);
}

void SyncGate::Leave(const GateWorker& worker) {
  Wakeups wakeups;
  {
    const MutexLock lock(mu_);
    bool is_new;  // A new member is expected as well, but may leave.
    GateMember* caller = roster_.FindOrAdd(worker, &is_new);
    if (caller == nullptr ||
        (!is_new && caller->presence == GateMember::Presence::kExpected)) {
      return;
    }
    const Time now = clock_();
    EndAcquire(queue_.ExtractAcquire(caller->waiting),
               {GateStatus::kCancelled, worker.device + " has left."}, {},
               &wakeups);
    ledger_.Release("left while it pushed", now, &caller->account);
    caller->takes_part = false;
    Roster::SetPhase(GatePhase::kIdle, now, caller);
    roster_.SetPresence(GateMember::Presence::kLeft, caller);
    Pump(&wakeups);
  }
  Run(wakeups);
}

// --- Updater ---

int64_t SyncGate::Open(int64_t step, const GateTerms& terms) {
  Wakeups wakeups;
  int64_t generation;
  {
    const MutexLock lock(mu_);
    if (shut_down_) {
      return ledger_.generation();
    }
    EndUpdaterWaits({GateStatus::kAborted,
                     "A new generation of the gate was opened: begin anew."},
                    &wakeups);
    ledger_.SetTerms(terms.quorum, terms.total);
    roster_.SetLeases(terms.lease, terms.start_lease);
    ledger_.Open(step);
    generation = ledger_.generation();
    passes_.clear();
    if (!end_of_waits_.ok()) {
      roster_.StartTraining();
      end_of_waits_ = {};
    }
    updater_seen_ = clock_();
    updater_started_ = false;
    failed_with_ = {};
    roster_.StartGeneration(updater_seen_);
    opened_quorum_ = ledger_.quorum();
    opened_total_ = ledger_.total();
    WaitQueue::Acquires waits = queue_.TakeForPermits();
    waits.merge(queue_.early);
    PlaceAll(std::move(waits), &wakeups);
    Pump(&wakeups);
  }
  Run(wakeups);
  return generation;
}

void SyncGate::AddPasses(int64_t n) {
  Wakeups wakeups;
  {
    const MutexLock lock(mu_);
    if (n > 0) {
      passes_.push_back({ledger_.Pass(), n});
    }
    Pump(&wakeups);
  }
  Run(wakeups);
}

SyncGate::WaitId SyncGate::WaitQuorum(int64_t generation, Time timeout,
                                      QuorumCallback done) {
  return AddUpdaterWait(generation, UpdaterWait::Kind::kQuorum, timeout,
                        std::move(done));
}

SyncGate::WaitId SyncGate::Flush(int64_t generation, QuorumCallback done) {
  return AddUpdaterWait(generation, UpdaterWait::Kind::kFlush, Time(0),
                        std::move(done));
}

SyncGate::WaitId SyncGate::Drain(int64_t generation, DrainCallback done) {
  return AddUpdaterWait(
      generation, UpdaterWait::Kind::kDrain, Time(0),
      [done = std::move(done)](const GateStatus& status, const Quorum&) {
        done(status);
      });
}

GateStatus SyncGate::Advance(int64_t generation, int64_t round, int64_t step,
                             bool* advanced) {
  Wakeups wakeups;
  {
    const MutexLock lock(mu_);
    *advanced = false;
    GateStatus status = CheckGeneration(generation);
    if (!status.ok()) {
      return status;
    }
    updater_seen_ = clock_();
    updater_started_ = true;
    if (round != ledger_.round()) {
      return {};
    }
    if (!ledger_.IsFull() &&
        !(ledger_.flushing() && ledger_.in_flight() == 0)) {
      return {GateStatus::kFailedPrecondition,
              "Round " + std::to_string(round) +
                  " cannot end: " + std::to_string(ledger_.committed()) +
                  " of " + std::to_string(ledger_.quorum()) +
                  " gradients are committed."};
    }
    *advanced = true;
    ledger_.Advance(step);
    Pump(&wakeups);
  }
  Run(wakeups);
  return {};
}

void SyncGate::CancelUpdater(int64_t generation, const GateWorker& worker) {
  Wakeups wakeups;
  {
    const MutexLock lock(mu_);
    if (generation == ledger_.generation()) {
      if (queue_.HasFlush()) {
        ledger_.SetFlushing(false);
      }
      ledger_.GiveFlushUp();
      EndUpdaterWaits({GateStatus::kCancelled, "The updater was stopped."},
                      &wakeups);
      if (!worker.device.empty()) {
        failed_with_ = worker;
        if (const GateMember* failed = roster_.Find(worker)) {
          EndAcquire(queue_.ExtractAcquire(failed->waiting), UpdaterFailed(),
                     {}, &wakeups);
        }
      }
      Pump(&wakeups);
    }
  }
  Run(wakeups);
}

GateStatus SyncGate::Configure(int64_t quorum, int64_t total) {
  GateStatus status =
      FirstError({CheckPositive("replicas_to_aggregate", quorum),
                  CheckPositive("total_num_replicas", total)});
  if (!status.ok()) {
    return status;
  }
  Wakeups wakeups;
  {
    const MutexLock lock(mu_);
    ledger_.SetTerms(quorum, total);
    if (IsOpen()) {
      PlaceAll(std::exchange(queue_.early, {}), &wakeups);
      Pump(&wakeups);
    }
  }
  Run(wakeups);
  return {};
}

void SyncGate::Close(int64_t generation) { Fail(generation, EndOfInput()); }

void SyncGate::Fail(int64_t generation, const GateStatus& error) {
  Wakeups wakeups;
  {
    const MutexLock lock(mu_);
    if (IsGeneration(generation)) {
      EndTraining(error, &wakeups);
      Report(&wakeups);
    }
  }
  Run(wakeups);
}

void SyncGate::Shutdown() {
  Wakeups wakeups;
  {
    const MutexLock lock(mu_);
    shut_down_ = true;
    EndTraining({GateStatus::kAborted, "The gate was deleted."}, &wakeups);
    while (!queue_.early.empty()) {
      EndEarly(queue_.early.extract(queue_.early.begin()), &wakeups);
    }
    Report(&wakeups);
  }
  Run(wakeups);
}

// --- Anyone ---

bool SyncGate::Cancel(WaitId id) {
  Wakeups wakeups;
  bool found;
  {
    const MutexLock lock(mu_);
    const GateStatus cancelled = {GateStatus::kCancelled,
                                  "The wait was cancelled."};
    AcquireNode acquire = queue_.ExtractAcquire(id);
    found = !acquire.empty() || CancelUpdaterWait(id, cancelled, &wakeups);
    EndAcquire(std::move(acquire), cancelled, {}, &wakeups);
    Pump(&wakeups);
  }
  Run(wakeups);
  return found;
}

SyncGateStats SyncGate::Stats() const {
  const MutexLock lock(mu_);
  const Time now = clock_();
  SyncGateStats stats = ledger_.Stats();
  stats.closed = !end_of_waits_.ok();
  stats.live = roster_.NumLive(ledger_.total());
  for (const auto& [device, member] : roster_.members()) {
    stats.workers.push_back(member.account.stats);
    GateWorkerStats& worker = stats.workers.back();
    worker.device = device;
    worker.live = member.is_live();
    worker.phase = member.phase;
    worker.phase_time = now - member.phase_since;
  }
  return stats;
}

SyncGate::Time SyncGate::Poll() {
  Wakeups wakeups;
  Time next;
  {
    const MutexLock lock(mu_);
    const Time now = clock_();
    ExpireUpdater(now, &wakeups);
    ExpireWorkers(now);
    ExpirePushes(now);
    ExpireEarly(now, &wakeups);
    // No alarm is due, since this is the call that it would ask for.
    next_poll_ = Time::min();
    Pump(&wakeups);
    next = std::min({NextOverdue(now), queue_.NextDeadline(),
                     roster_.NextLeaseEnd(ledger_.total(), IsOpen(), now)});
    if (IsOpen() && updater_lease_ > Time(0)) {
      next = std::min(next, UpdaterLeaseEnd());
    }
    next_poll_ = next;
  }
  Run(wakeups);
  return next;
}

SyncGate::WaitId SyncGate::AddUpdaterWait(int64_t generation,
                                          UpdaterWait::Kind kind, Time timeout,
                                          QuorumCallback done) {
  Wakeups wakeups;
  WaitId id;
  {
    const MutexLock lock(mu_);
    id = queue_.NewId();
    GateStatus status =
        FirstError({CheckGeneration(generation), end_of_waits_});
    if (!status.ok()) {
      wakeups.push_back([done = std::move(done), status] { done(status, {}); });
    } else {
      const Time now = clock_();
      // The chief calls kDrain, so it is no sign of the updater.
      if (kind != UpdaterWait::Kind::kDrain) {
        updater_seen_ = now;
        updater_started_ |= timeout == Time(0) || timeout > kSignOfLife;
      }
      if (kind == UpdaterWait::Kind::kQuorum) {
        ledger_.EndFlushGivenUp();
        failed_with_ = {};
      } else if (kind == UpdaterWait::Kind::kFlush) {
        ledger_.SetFlushing(true);
      }
      const Time deadline = timeout > Time(0) ? now + timeout : kNever;
      queue_.updaters.insert({id, {kind, deadline, std::move(done)}});
      Pump(&wakeups);
    }
  }
  Run(wakeups);
  return id;
}

void SyncGate::Run(const Wakeups& wakeups) {
  for (const std::function<void()>& wakeup : wakeups) {
    wakeup();
  }
}

}  // namespace tf_syncrep
