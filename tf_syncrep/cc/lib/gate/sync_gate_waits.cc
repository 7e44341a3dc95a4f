// The private part of SyncGate: everything that runs with the lock held.

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "tf_syncrep/cc/lib/gate/sync_gate.h"

namespace tf_syncrep {
namespace {

constexpr SyncGate::Time kNever = SyncGate::Time::max();

}  // namespace

int64_t SyncGate::Share(Time now) const {
  if (!strict_ && !roster_.Gathers(ledger_.total(), now)) {
    return std::numeric_limits<int64_t>::max();
  }
  const int64_t live = std::max<int64_t>(roster_.NumLive(ledger_.total()), 1);
  // The formula (quorum + live - 1) / live could overflow.
  return (ledger_.quorum() - 1) / live + 1;
}

SyncGate::Time SyncGate::UpdaterLeaseEnd() const {
  return updater_seen_ +
         (updater_started_ ? updater_lease_
                           : std::max(updater_lease_, roster_.start_lease()));
}

GateMember* SyncGate::Enter(const GateWorker& worker, AcquireKind kind,
                            Wakeups* wakeups) {
  bool replaced;
  GateMember* caller = roster_.Enter(worker, &replaced);
  if (caller == nullptr) {
    return nullptr;
  }
  const Time now = clock_();
  EndAcquire(queue_.ExtractAcquire(caller->waiting),
             {GateStatus::kAborted,
              "Another acquire of " + worker.device + " took its place."},
             {}, wakeups);
  ledger_.Release(replaced ? "was started anew while it pushed"
                           : "began another step while it pushed",
                  now, &caller->account);
  caller->account.worker.incarnation = worker.incarnation;
  if (kind == AcquireKind::kFirst ||
      caller->presence == GateMember::Presence::kExpected) {
    caller->started = false;
  } else {
    Roster::EndSilence(now, caller);
  }
  roster_.SetPresence(GateMember::Presence::kLive, caller);
  caller->last_seen = now;
  Roster::SetPhase(GatePhase::kWaiting, now, caller);
  return caller;
}

void SyncGate::Place(AcquireNode wait, Wakeups* wakeups) {
  AcquireWait& acquire = wait.mapped();
  const bool is_first = acquire.kind == AcquireKind::kFirst;
  if (!end_of_waits_.ok()) {
    if (!is_first || acquire.member->takes_part || shut_down_) {
      EndAcquireForAll(std::move(wait), end_of_waits_, wakeups);
      return;
    }
    acquire.deadline = clock_() + roster_.start_lease();
  } else if (acquire.member->account.worker == failed_with_) {
    EndAcquire(std::move(wait), UpdaterFailed(), {}, wakeups);
    return;
  } else if (ledger_.generation() > 0) {
    acquire.member->takes_part = TermsAgree(acquire.terms);
    if (acquire.member->takes_part) {
      roster_.SetPresence(GateMember::Presence::kLive, acquire.member);
      acquire.deadline = kNever;
      queue_.ready.insert(std::move(wait));
      return;
    }
    if (!is_first) {
      EndEarly(std::move(wait), wakeups);
      return;
    }
    acquire.deadline = std::min(acquire.deadline, clock_() + roster_.lease());
  }
  queue_.early.insert(std::move(wait));
}

void SyncGate::PlaceAll(WaitQueue::Acquires waits, Wakeups* wakeups) {
  while (!waits.empty()) {
    Place(waits.extract(waits.begin()), wakeups);
  }
}

bool SyncGate::TermsAgree(const GateTerms& terms) const {
  const auto agree = [&terms](int64_t quorum, int64_t total) {
    return (terms.quorum == 0 || terms.quorum == quorum) &&
           (terms.total == 0 || terms.total == total);
  };
  return agree(opened_quorum_, opened_total_) ||
         agree(ledger_.next_quorum(), ledger_.next_total());
}

GateStatus SyncGate::TermsDiffer(const GateTerms& terms) const {
  const auto describe = [](int64_t quorum, int64_t total) {
    return "replicas_to_aggregate=" + std::to_string(quorum) +
           ", total_num_replicas=" + std::to_string(total);
  };
  return {GateStatus::kInvalidArgument,
          "Worker and chief must agree: the chief opened the gate with " +
              describe(opened_quorum_, opened_total_) +
              ". Received: " + describe(terms.quorum, terms.total)};
}

void SyncGate::EndEarly(AcquireNode wait, Wakeups* wakeups) {
  if (!end_of_waits_.ok()) {
    EndAcquireForAll(std::move(wait), end_of_waits_, wakeups);
    return;
  }
  // The worker takes no part, and nobody must wait for it.
  roster_.SetPresence(GateMember::Presence::kExpired, wait.mapped().member);
  const GateStatus status = TermsDiffer(wait.mapped().terms);
  EndAcquire(std::move(wait), status, {}, wakeups);
}

void SyncGate::EndAcquire(AcquireNode wait, const GateStatus& status,
                          const Permit& permit, Wakeups* wakeups) {
  if (wait.empty()) {
    return;
  }
  GateMember& member = *wait.mapped().member;
  const Time now = clock_();
  roster_.SetWaiting(0, &member);
  member.last_seen = now;
  member.permit = permit;
  member.account.stats.waited += now - wait.mapped().since;
  Roster::SetPhase(status.ok() ? GatePhase::kComputing : GatePhase::kIdle, now,
                   &member);
  wakeups->push_back([done = std::move(wait.mapped().done), status, permit] {
    done(status, permit);
  });
}

void SyncGate::EndAcquireForAll(AcquireNode wait, const GateStatus& status,
                                Wakeups* wakeups) {
  const bool succeeds = status.code == GateStatus::kOutOfRange &&
                        wait.mapped().kind == AcquireKind::kFirst;
  // A worker that hears here that the training is over no longer takes part.
  wait.mapped().member->takes_part &= succeeds || end_of_waits_.ok();
  EndAcquire(std::move(wait), succeeds ? GateStatus() : status, ledger_.Pass(),
             wakeups);
}

GateStatus SyncGate::UpdaterFailed() {
  return {GateStatus::kCancelled,
          "The updater of this worker's process has failed."};
}

void SyncGate::EndUpdaterWaits(const GateStatus& status, Wakeups* wakeups) {
  for (auto& entry : queue_.updaters) {
    wakeups->push_back(
        [done = std::move(entry.second.done), status] { done(status, {}); });
  }
  queue_.updaters.clear();
}

void SyncGate::EndTraining(const GateStatus& status, Wakeups* wakeups) {
  if (!end_of_waits_.ok()) {
    return;
  }
  end_of_waits_ = status;
  ledger_.End(status);
  WaitQueue::Acquires waits = queue_.TakeForPermits();
  if (ledger_.generation() == 0) {
    waits.merge(queue_.early);
  }
  while (!waits.empty()) {
    EndAcquireForAll(waits.extract(waits.begin()), status, wakeups);
  }
  EndUpdaterWaits(status, wakeups);
}

void SyncGate::Pump(Wakeups* wakeups) {
  for (auto wait = queue_.updaters.begin(); wait != queue_.updaters.end();) {
    wait = PumpUpdater(&wait->second, wakeups) ? queue_.updaters.erase(wait)
                                               : std::next(wait);
  }
  if (IsOpen()) {
    PumpAcquires(wakeups);
    const Time now = clock_();
    GrantSpares(now, wakeups);
    const Time overdue = NextOverdue(now);
    if (overdue < next_poll_ && alarm_ != nullptr) {
      next_poll_ = overdue;
      wakeups->push_back(alarm_);
    }
  }
  Report(wakeups);
}

bool SyncGate::PumpUpdater(UpdaterWait* wait, Wakeups* wakeups) {
  switch (wait->kind) {
    case UpdaterWait::Kind::kQuorum:
      if (!ledger_.IsFull()) {
        return false;
      }
      break;
    case UpdaterWait::Kind::kFlush:
      if (ledger_.in_flight() > 0) {
        return false;
      }
      // A round without gradients goes on.
      ledger_.SetFlushing(ledger_.committed() > 0);
      break;
    case UpdaterWait::Kind::kDrain:
      if (ledger_.in_flight() > 0 || ledger_.flushing() || ledger_.IsFull()) {
        return false;
      }
      break;
  }
  wakeups->push_back([done = std::move(wait->done),
                      quorum = Quorum{ledger_.round(), ledger_.committed()}] {
    done({}, quorum);
  });
  return true;
}

void SyncGate::PumpAcquires(Wakeups* wakeups) {
  const Time now = clock_();
  const int64_t share = Share(now);
  if (ledger_.round() != pumped_round_ || share > pumped_share_ ||
      !passes_.empty()) {
    queue_.ready.merge(queue_.sated);
  }
  pumped_round_ = ledger_.round();
  pumped_share_ = share;
  auto wait = queue_.ready.begin();
  while (wait != queue_.ready.end() &&
         (ledger_.HasRoom() || !passes_.empty() || !updater_started_)) {
    const auto next = std::next(wait);
    if (wait->second.kind == AcquireKind::kNext && !passes_.empty()) {
      const Permit pass = TakePass(wait->first);
      EndAcquire(queue_.ready.extract(wait), {}, pass, wakeups);
    } else if (ledger_.ContributedInRound(wait->second.member->account) >=
               share) {
      queue_.sated.insert(queue_.ready.extract(wait));
    } else if (ledger_.HasRoom()) {
      Grant(wait, /*overdue=*/nullptr, now, wakeups);
    } else if (wait->second.kind == AcquireKind::kFirst && !updater_started_) {
      // The call succeeds without a permit: the updater that it would wait for
      // may come only afterwards.
      EndAcquire(queue_.ready.extract(wait), {}, ledger_.Pass(), wakeups);
    }
    wait = next;
  }
}

void SyncGate::GrantSpares(Time now, Wakeups* wakeups) {
  const LonePermits& permits = ledger_.lone_permits();
  auto wait = queue_.ready.begin();
  while (WantsSpares() && wait != queue_.ready.end()) {
    const Time rest = pace_.LongestRest(permits, now);
    // Mostly this is false, and then a thousand workers need not be looked at.
    if (!pace_.IsOverdue(rest, roster_.idle_steps())) {
      return;
    }
    const GateMember* idle = wait->second.member;
    // A worker without a first step gets no spare, since its step would take
    // long.
    while (!idle->started || !pace_.IsOverdue(rest, idle->account.last_step)) {
      if (++wait == queue_.ready.end()) {
        return;
      }
      idle = wait->second.member;
    }
    Grant(wait++, pace_.FindOverdue(permits, idle->account, now), now, wakeups);
  }
}

void SyncGate::Grant(WaitQueue::Acquires::iterator wait, GateAccount* overdue,
                     Time now, Wakeups* wakeups) {
  GateAccount* account = &wait->second.member->account;
  const Permit permit = ledger_.Grant(wait->first, now, overdue, account);
  EndAcquire(queue_.ready.extract(wait), {}, permit, wakeups);
}

SyncGate::Permit SyncGate::TakePass(WaitId id) {
  Permit permit = passes_.front().permit;
  permit.number = -id;
  if (--passes_.front().num_left == 0) {
    passes_.pop_front();
  }
  return permit;
}

bool SyncGate::WantsSpares() const {
  return IsOpen() && spares_ && !strict_ && ledger_.Admits() &&
         !queue_.ready.empty();
}

bool SyncGate::WaitsForPushes() const {
  return IsOpen() && spares_ && ledger_.in_flight() > 0 &&
         (!queue_.ready.empty() || !queue_.sated.empty());
}

SyncGate::Time SyncGate::NextOverdue(Time now) const {
  Time next = kNever;
  if (WantsSpares()) {
    next = pace_.NextOverdue(ledger_.lone_permits(), now);
  }
  if (WaitsForPushes() && pace_.push_limit() < kNever) {
    next =
        std::min(next, ledger_.flights().front()->since + pace_.push_limit());
  }
  return next;
}

void SyncGate::Report(Wakeups* wakeups) {
  for (const GateEvent& event : ledger_.TakeEvents()) {
    if (observer_ != nullptr) {
      observer_(event);
    }
    const std::string line = log_ == nullptr ? "" : Describe(event);
    if (!line.empty()) {
      wakeups->push_back([log = log_, line] { log(line); });
    }
  }
}

std::string SyncGate::Describe(const GateEvent& event) const {
  switch (event.kind) {
    case GateEvent::Kind::kExpired:
      return "Round " + std::to_string(event.round) + " no longer waits for " +
             event.device + ", which " + event.message + ".";
    case GateEvent::Kind::kVoid:
      return "Round " + std::to_string(event.round) +
             " is void, and its gradients (" + std::to_string(event.value) +
             " complete) are dropped: " +
             (event.device.empty() ? "" : event.device + " ") + event.message +
             ".";
    case GateEvent::Kind::kEnded: {
      if (event.value == GateStatus::kOutOfRange || shut_down_) {
        return "";
      }
      std::string line = "The training failed in round " +
                         std::to_string(event.round) + ": " + event.message;
      for (const auto& [device, member] : roster_.members()) {
        if (ledger_.HoldsPermit(member.account) ||
            ledger_.IsInFlight(member.account)) {
          line +=
              " " + device + " had " + Roster::Activity(member, clock_()) + ".";
        }
      }
      return line;
    }
    default:
      return "";
  }
}

GateStatus SyncGate::CheckGeneration(int64_t generation) const {
  if (ledger_.generation() == 0) {
    return {GateStatus::kFailedPrecondition, "The gate was never opened."};
  }
  if (generation != ledger_.generation()) {
    return {GateStatus::kAborted,
            "Generation " + std::to_string(generation) +
                " of the gate is over; the present one is " +
                std::to_string(ledger_.generation()) + "."};
  }
  return {};
}

bool SyncGate::CancelUpdaterWait(WaitId id, const GateStatus& status,
                                 Wakeups* wakeups) {
  const auto wait = queue_.updaters.find(id);
  if (wait == queue_.updaters.end()) {
    return false;
  }
  const bool is_flush = wait->second.kind == UpdaterWait::Kind::kFlush;
  wakeups->push_back(
      [done = std::move(wait->second.done), status] { done(status, {}); });
  queue_.updaters.erase(wait);
  if (is_flush) {
    ledger_.SetFlushing(queue_.HasFlush());
  }
  return true;
}

void SyncGate::ExpireWorkers(Time now) {
  const std::vector<GateMember*> expired =
      roster_.Expire(ledger_.total(), IsOpen(), now);
  for (GateMember* member : expired) {
    ledger_.Expire(now - member->last_seen,
                   "has " + Roster::Activity(*member, now), &member->account);
  }
  // Releases come after all of the above, since the first one of a contribution
  // in flight voids the round.
  for (GateMember* member : expired) {
    ledger_.Release("has " + Roster::Activity(*member, now), now,
                    &member->account);
  }
}

void SyncGate::ExpirePushes(Time now) {
  if (WaitsForPushes() && pace_.push_limit() < kNever) {
    GateAccount* oldest = ledger_.flights().front();
    if (oldest->since + pace_.push_limit() <= now) {
      ledger_.Release("has been pushing much longer than the others did", now,
                      oldest);
    }
  }
}

void SyncGate::ExpireUpdater(Time now, Wakeups* wakeups) {
  WaitQueue::Updaters& waits = queue_.updaters;
  for (auto entry = waits.begin(); entry != waits.end();) {
    UpdaterWait& wait = entry->second;
    if (wait.kind != UpdaterWait::Kind::kDrain) {
      // An updater that waits is not silent.
      updater_seen_ = std::max(updater_seen_, std::min(now, wait.deadline));
    }
    if (wait.deadline > now) {
      ++entry;
      continue;
    }
    wakeups->push_back([done = std::move(wait.done)] {
      done({GateStatus::kDeadlineExceeded, "No full round in this time."}, {});
    });
    entry = waits.erase(entry);
  }
  if (IsOpen() && updater_lease_ > Time(0) && UpdaterLeaseEnd() <= now) {
    EndTraining({GateStatus::kDeadlineExceeded,
                 "The updater has not called for its lease of " +
                     std::to_string(
                         std::chrono::duration_cast<std::chrono::milliseconds>(
                             updater_lease_)
                             .count()) +
                     " ms: the coordinator is gone or stuck."},
                wakeups);
  }
}

void SyncGate::ExpireEarly(Time now, Wakeups* wakeups) {
  for (auto wait = queue_.early.begin(); wait != queue_.early.end();) {
    const auto next = std::next(wait);
    if (wait->second.deadline <= now) {
      EndEarly(queue_.early.extract(wait), wakeups);
    }
    wait = next;
  }
}

}  // namespace tf_syncrep
