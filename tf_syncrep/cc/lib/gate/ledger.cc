#include "tf_syncrep/cc/lib/gate/ledger.h"

#include <algorithm>
#include <utility>

namespace tf_syncrep {

void LonePermits::Add(GateAccount* holder) {
  by_order_.emplace(holder->permit_order, holder);
  ends_.insert(holder->permit_end);
}

void LonePermits::Remove(GateAccount* holder) {
  by_order_.erase(holder->permit_order);
  ends_.extract(holder->permit_end);  // One of those that are equal.
}

void LonePermits::Clear() {
  by_order_.clear();
  ends_.clear();
}

Ledger::Ledger(const SyncGateOptions& options)
    : first_generation_(options.first_generation),
      quorum_(options.quorum),
      total_(options.total),
      next_quorum_(options.quorum),
      next_total_(options.total),
      round_(options.first_round) {}

bool Ledger::HasRoom() const {
  return Admits() &&
         static_cast<int64_t>(lone_permits_.size()) + NumAdmitted() <
             std::max(total_, quorum_);
}

void Ledger::SetTerms(int64_t quorum, int64_t total) {
  next_quorum_ = quorum > 0 ? quorum : next_quorum_;
  next_total_ = total > 0 ? total : next_total_;
  if (generation_ == 0) {
    quorum_ = next_quorum_;
    total_ = next_total_;
  }
}

void Ledger::Open(int64_t step) {
  if (NumAdmitted() > 0) {
    VoidRound("a new generation was opened", nullptr);
  } else if (generation_ > 0) {
    StartRound();
  }
  generation_ = std::max(generation_ + 1, first_generation_);
  step_ = step;
  Note(GateEvent::Kind::kOpened, step, nullptr);
}

GatePermit Ledger::Grant(int64_t number, GateTime now, GateAccount* overdue,
                         GateAccount* account) {
  account->holds = GateAccount::Holds::kPermit;
  account->round = round_;
  account->permit_number = number;
  account->permit_order = num_grants_++;
  account->permit_end = now + account->last_step;
  account->since = now;
  account->spare = nullptr;
  account->spare_of = overdue;
  lone_permits_.Add(account);
  if (overdue != nullptr) {
    lone_permits_.Remove(overdue);
    overdue->spare = account;
    account->stats.spares++;
    sums_.spares++;
  }
  Note(overdue != nullptr ? GateEvent::Kind::kSpare
                          : GateEvent::Kind::kPermitted,
       number, account);
  return {generation_, round_, step_, number};
}

GateAdmission Ledger::Admit(int64_t generation, int64_t round, bool may_give,
                            bool is_fit, GateTime now, GateAccount* account) {
  GateAdmission admission = GateAdmission::kStale;
  if (account != nullptr && IsPresent(generation, round)) {
    if (IsInFlight(*account)) {
      // The step was begun again, and nobody knows what its first run has
      // pushed.
      Release("began its step again while it pushed", now, account);
    } else {
      admission = Judge(may_give || HoldsPermit(*account), is_fit);
      if (HoldsPermit(*account)) {
        DropPermit(account);
      }
      account->holds = GateAccount::Holds::kNothing;
    }
  }
  GateWorkerStats nobodys;
  GateWorkerStats& stats = account == nullptr ? nobodys : account->stats;
  switch (admission) {
    case GateAdmission::kAdmitted:
      account->holds = GateAccount::Holds::kContribution;
      account->round = round_;
      account->since = now;
      flights_.push_back(account);
      sums_.admitted++;
      Note(GateEvent::Kind::kAdmitted, 0, account);
      break;
    case GateAdmission::kLate:
      stats.late++;
      sums_.late++;
      Note(GateEvent::Kind::kLate, 0, account);
      break;
    case GateAdmission::kStale:
      stats.stale++;
      sums_.stale++;
      Note(GateEvent::Kind::kStale, round, account);
      break;
    case GateAdmission::kRejected:
      stats.rejected++;
      sums_.rejected++;
      Note(GateEvent::Kind::kRejected, 0, account);
      break;
  }
  return admission;
}

bool Ledger::Commit(int64_t generation, int64_t round, GateTime now,
                    GateAccount* account) {
  if (generation != generation_ || round != round_ || !IsInFlight(*account)) {
    return false;
  }
  account->contributed_in_round = ContributedInRound(*account) + 1;
  if (account->contributed_in_round == 1) {
    contributors_.push_back(account);
  }
  account->contributed_round = round_;
  account->holds = GateAccount::Holds::kNothing;
  account->stats.contributed++;
  flights_.erase(std::find(flights_.begin(), flights_.end(), account));
  if (committed_ > 0 && committed_ + 1 == quorum_) {
    account->stats.held_up += now - last_commit_;
  }
  last_commit_ = now;
  committed_++;
  sums_.committed++;
  Note(GateEvent::Kind::kCommitted, 0, account);
  return true;
}

void Ledger::Release(const std::string& why, GateTime now,
                     GateAccount* account) {
  if (HoldsPermit(*account)) {
    DropPermit(account);
    Note(GateEvent::Kind::kReleased, 0, account, why);
  } else if (IsInFlight(*account)) {
    account->stats.held_up += now - account->since;
    VoidRound(why, account);
  }
  account->holds = GateAccount::Holds::kNothing;
}

void Ledger::Expire(GateTime silence, const std::string& what,
                    GateAccount* account) {
  if (HoldsPermit(*account) || IsInFlight(*account)) {
    account->stats.expired++;
    sums_.expired++;
    Note(GateEvent::Kind::kExpired, silence.count(), account, what);
  }
}

void Ledger::EndFlushGivenUp() {
  if (flushing_ && flush_given_up_) {
    VoidRound("its updater was told to stop", nullptr);
  }
}

void Ledger::Advance(int64_t step) {
  sums_.applied += committed_;
  sums_.updates++;
  sums_.rounds++;
  step_ = step;
  Note(GateEvent::Kind::kAdvanced, committed_, nullptr);
  StartRound();
}

void Ledger::End(const GateStatus& status) {
  Note(GateEvent::Kind::kEnded, status.code, nullptr, status.message);
}

SyncGateStats Ledger::Stats() const {
  SyncGateStats stats = sums_;
  stats.generation = generation_;
  stats.round = round_;
  stats.step = step_;
  stats.quorum = quorum_;
  stats.total = total_;
  stats.in_flight = in_flight();
  stats.pending = committed_;
  return stats;
}

std::vector<GateEvent> Ledger::TakeEvents() {
  return std::exchange(events_, {});
}

GateAdmission Ledger::Judge(bool may_give, bool is_fit) const {
  if (!may_give) {
    return GateAdmission::kStale;
  }
  if (!is_fit) {
    return GateAdmission::kRejected;
  }
  return Admits() ? GateAdmission::kAdmitted : GateAdmission::kLate;
}

void Ledger::StartRound() {
  round_++;
  lone_permits_.Clear();
  flights_.clear();
  contributors_.clear();
  committed_ = 0;
  SetFlushing(false);
  quorum_ = next_quorum_;
  total_ = next_total_;
}

void Ledger::VoidRound(const std::string& why, GateAccount* cause) {
  for (GateAccount* account : contributors_) {
    account->stats.voided += ContributedInRound(*account);
  }
  sums_.aborted += in_flight();
  sums_.voided += committed_;
  sums_.voids++;
  sums_.rounds++;
  Note(GateEvent::Kind::kVoid, committed_, cause, why);
  StartRound();
}

void Ledger::DropPermit(GateAccount* account) {
  if (account->spare == nullptr) {
    lone_permits_.Remove(account);
  } else {
    account->spare->spare_of = nullptr;
    account->spare = nullptr;
  }
  if (account->spare_of != nullptr) {
    // The overdue permit may have another spare.
    lone_permits_.Add(account->spare_of);
    account->spare_of->spare = nullptr;
    account->spare_of = nullptr;
  }
}

void Ledger::Note(GateEvent::Kind kind, int64_t value,
                  const GateAccount* account, const std::string& message) {
  GateEvent event;
  event.kind = kind;
  event.generation = generation_;
  event.round = round_;
  event.value = value;
  if (account != nullptr) {
    event.device = account->worker.device;
    event.incarnation = account->worker.incarnation;
  }
  event.message = message;
  events_.push_back(std::move(event));
}

}  // namespace tf_syncrep
