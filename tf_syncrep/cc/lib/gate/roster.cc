#include "tf_syncrep/cc/lib/gate/roster.h"

#include <algorithm>

namespace tf_syncrep {
namespace {

constexpr GateTime kNever = GateTime::max();

void Set(GateTime value, GateTime* time) {
  if (value > GateTime(0)) {
    *time = value;
  }
}

}  // namespace

Roster::Roster(const SyncGateOptions& options)
    : strict_(options.strict),
      gathers_(options.gathers),
      lease_(options.lease),
      start_lease_(options.start_lease) {}

void Roster::SetLeases(GateTime lease, GateTime start_lease) {
  Set(lease, &lease_);
  Set(start_lease, &start_lease_);
}

GateMember* Roster::Find(const GateWorker& worker) {
  const auto entry = members_.find(worker.device);
  return entry != members_.end() &&
                 entry->second.account.worker.incarnation == worker.incarnation
             ? &entry->second
             : nullptr;
}

GateMember* Roster::FindAndRenew(const GateWorker& worker, GateTime now) {
  GateMember* member = Find(worker);
  if (member != nullptr) {
    member->last_seen = now;
    if (member->presence == GateMember::Presence::kExpired) {
      SetPresence(GateMember::Presence::kLive, member);
    }
  }
  return member;
}

GateMember* Roster::Enter(const GateWorker& worker, bool* replaced) {
  const auto [entry, is_new] = members_.try_emplace(worker.device);
  GateMember& member = entry->second;
  uint64_t& incarnation = member.account.worker.incarnation;
  *replaced = !is_new && incarnation != worker.incarnation;
  if (*replaced) {
    std::vector<uint64_t>& dead = member.dead_incarnations;
    if (std::find(dead.begin(), dead.end(), worker.incarnation) != dead.end()) {
      return nullptr;
    }
    dead.push_back(incarnation);
    member.takes_part = false;
    member.started = false;
    CountIdle(&member);
    member.first_step = member.longest_silence = GateTime(0);
    member.account.last_step = GateTime(0);
    member.phase = GatePhase::kIdle;
  }
  if (is_new) {
    member.account.worker = worker;
  }
  return &member;
}

GateMember* Roster::FindOrAdd(const GateWorker& worker, bool* is_new) {
  const auto [entry, added] = members_.try_emplace(worker.device);
  *is_new = added;
  if (added) {
    entry->second.account.worker = worker;
  }
  return Find(worker);
}

void Roster::SetPresence(GateMember::Presence presence, GateMember* member) {
  using Presence = GateMember::Presence;
  num_heard_of_ += (presence != Presence::kExpected ? 1 : 0) -
                   (member->presence != Presence::kExpected ? 1 : 0);
  num_live_ +=
      (presence == Presence::kLive ? 1 : 0) - (member->is_live() ? 1 : 0);
  member->presence = presence;
}

void Roster::SetPhase(GatePhase phase, GateTime now, GateMember* member) {
  member->phase = phase;
  member->phase_since = now;
}

void Roster::SetWaiting(int64_t wait, GateMember* member) {
  member->waiting = wait;
  CountIdle(member);
}

void Roster::CountIdle(GateMember* member) {
  const bool is_idle = member->started && member->waiting != 0;
  const GateTime step = member->account.last_step;
  if (is_idle && !member->is_idle) {
    idle_steps_.insert(step);
  } else if (!is_idle && member->is_idle) {
    idle_steps_.erase(idle_steps_.find(step));
  }
  member->is_idle = is_idle;
}

void Roster::EndStep(int64_t generation, bool is_of_it, GateTime now,
                     GateMember* member) {
  const bool is_first = !member->started;
  member->started = true;
  CountIdle(member);
  if (member->phase != GatePhase::kComputing) {
    return;
  }
  const GateTime step = now - member->phase_since;
  if (!is_first) {
    member->account.last_step = step;
    member->first_step = GateTime(0);
    member->longest_silence = std::max(member->longest_silence, step);
    return;
  }
  member->first_step = step;
  if (is_of_it) {
    longest_first_step_ = std::max(longest_first_step_, step);
    // A worker that has started twice counts only once.
    num_first_steps_ += member->timed_in != generation ? 1 : 0;
    member->timed_in = generation;
  }
}

void Roster::EndSilence(GateTime now, GateMember* member) {
  if (member->phase == GatePhase::kPushing ||
      (member->phase == GatePhase::kComputing && member->started)) {
    member->longest_silence =
        std::max(member->longest_silence, now - member->phase_since);
  }
}

std::string Roster::Activity(const GateMember& member, GateTime now) {
  const char* const activities[] = {"idle", "waiting", "computing", "pushing"};
  const int64_t tenths =
      (now - member.phase_since) / std::chrono::milliseconds(100);
  return std::string("been ") + activities[static_cast<int>(member.phase)] +
         " for " + std::to_string(tenths / 10) + "." +
         std::to_string(tenths % 10) + " s";
}

int64_t Roster::NumLive(int64_t total) const {
  const int64_t unheard_of =
      unheard_of_expired_ ? 0 : std::max<int64_t>(total - num_heard_of_, 0);
  return num_live_ + unheard_of;
}

bool Roster::Gathers(int64_t total, GateTime now) const {
  return gathers_ && num_heard_of_ < total && now < opened_at_ + lease_;
}

GateTime Roster::FirstStepLease(int64_t total) const {
  // In strict mode rounds wait also for workers that were never heard of.
  int64_t num_in_it = strict_ ? NumLive(total) - num_live_ : 0;
  for (const auto& [device, member] : members_) {
    num_in_it +=
        member.is_live() && !member.started && member.waiting == 0 ? 1 : 0;
  }
  if (num_first_steps_ < num_in_it) {
    return start_lease_;
  }
  return std::min(start_lease_, std::max(lease_, 4 * longest_first_step_));
}

GateTime Roster::LeaseEnd(const GateMember& member,
                          GateTime first_step_lease) const {
  const GateTime longest =
      std::min(std::max(member.first_step, member.longest_silence),
               std::max(lease_, start_lease_));
  return member.last_seen +
         (member.started ? std::max(lease_, 2 * longest) : first_step_lease);
}

std::vector<GateMember*> Roster::Expire(int64_t total, bool is_open,
                                        GateTime now) {
  std::vector<GateMember*> expired;
  const GateTime first_step_lease = FirstStepLease(total);
  for (auto& [device, member] : members_) {
    if (member.is_live() && member.waiting == 0 &&
        LeaseEnd(member, first_step_lease) <= now) {
      expired.push_back(&member);
    }
  }
  for (GateMember* member : expired) {
    SetPresence(GateMember::Presence::kExpired, member);
  }
  unheard_of_expired_ |= is_open && opened_at_ + start_lease_ <= now;
  return expired;
}

GateTime Roster::NextLeaseEnd(int64_t total, bool is_open, GateTime now) const {
  GateTime next = kNever;
  const GateTime first_step_lease = FirstStepLease(total);
  for (const auto& [device, member] : members_) {
    if (member.is_live() && member.waiting == 0) {
      next = std::min(next, LeaseEnd(member, first_step_lease));
    }
  }
  if (is_open && !unheard_of_expired_) {
    next = std::min(next, opened_at_ + start_lease_);
  }
  if (is_open && Gathers(total, now)) {
    next = std::min(next, opened_at_ + lease_);
  }
  return next;
}

void Roster::StartTraining() {
  for (auto& [device, member] : members_) {
    SetPresence(GateMember::Presence::kExpected, &member);
  }
}

void Roster::StartGeneration(GateTime now) {
  opened_at_ = now;
  unheard_of_expired_ = false;
  num_first_steps_ = 0;
  longest_first_step_ = GateTime(0);
}

}  // namespace tf_syncrep
