#include "tf_syncrep/cc/lib/sync_gate_timer.h"

#include <algorithm>
#include <chrono>

namespace tf_syncrep {

SyncGate::Time SyncGateTimer::SteadyTime() {
  return std::chrono::duration_cast<SyncGate::Time>(
      std::chrono::steady_clock::now().time_since_epoch());
}

SyncGateTimer::SyncGateTimer(SyncGate* gate, SyncGate::Time period)
    : gate_(gate), period_(period), thread_([this] { PollUntilStopped(); }) {}

SyncGateTimer::~SyncGateTimer() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopped_ = true;
  }
  wake_up_.notify_all();
  thread_.join();
}

void SyncGateTimer::PollUntilStopped() {
  std::unique_lock<std::mutex> lock(mu_);
  while (!stopped_) {
    // Poll() calls callbacks, which must not run under a lock.
    lock.unlock();
    const SyncGate::Time next = gate_->Poll();
    const SyncGate::Time now = SteadyTime();
    const SyncGate::Time sleep =
        std::clamp(next - now, SyncGate::Time(0), period_);
    lock.lock();
    wake_up_.wait_for(lock, sleep, [this] { return stopped_; });
  }
}

}  // namespace tf_syncrep
