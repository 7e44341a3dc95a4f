#include "tests/simulator/actor.h"

#include <algorithm>
#include <utility>

namespace tf_syncrep::simulator {

void Actor::Crash() {
  is_up_ = false;
  Forget();
}

void Actor::Restart() {
  is_up_ = true;
  ++life_;
  rests_until_ = SyncGate::Time(0);
  Begin();
}

bool Actor::Start() {
  if (!is_up_ || is_over() || !pending_.empty() ||
      cluster_->now() < rests_until_) {
    return false;
  }
  error_ = {};
  const SyncGate::Time rested_until = rests_until_;
  Next();
  return !pending_.empty() || rests_until_ != rested_until;
}

void Actor::Answer(Call* call) {
  if (!Remove(call)) {
    if (is_up_ && call->from_life == life_) {
      TakeBeside(*call);
    }
    return;
  }
  if (!call->status.ok() && error_.ok()) {
    error_ = call->status;
  }
  Take(call);
  if (pending_.empty()) {
    GoOn();
  }
}

void Actor::Lose(Call* call) {
  if (Remove(call)) {
    error_ = {Call::kUnavailable, "The connection is broken."};
    if (pending_.empty()) {
      GoOn();
    }
  }
}

bool Actor::Remove(Call* call) {
  const auto place = std::find(pending_.begin(), pending_.end(), call);
  if (place == pending_.end()) {
    return false;
  }
  pending_.erase(place);
  return true;
}

Call Actor::NewCall(CallKind kind, Task to, int variable) const {
  Call call;
  call.kind = kind;
  call.from = task_;
  call.from_life = life_;
  call.to = to;
  call.variable = variable;
  return call;
}

}  // namespace tf_syncrep::simulator
