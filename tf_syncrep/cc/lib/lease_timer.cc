#include "tf_syncrep/cc/lib/lease_timer.h"

#include <algorithm>
#include <utility>

namespace tf_syncrep {

LeaseTimer::Time LeaseTimer::SteadyTime() {
  return std::chrono::duration_cast<Time>(
      std::chrono::steady_clock::now().time_since_epoch());
}

LeaseTimer::LeaseTimer(std::function<Time()> poll, Time period)
    : poll_(std::move(poll)),
      period_(period),
      thread_([this] { PollUntilStopped(); }) {}

LeaseTimer::~LeaseTimer() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopped_ = true;
  }
  wake_up_.notify_all();
  thread_.join();
}

void LeaseTimer::PollUntilStopped() {
  std::unique_lock<std::mutex> lock(mu_);
  while (!stopped_) {
    // It calls callbacks, which must not run under a lock.
    lock.unlock();
    const Time next = poll_();
    const Time now = SteadyTime();
    const Time sleep = std::clamp(next - now, Time(0), period_);
    lock.lock();
    wake_up_.wait_for(lock, sleep, [this] { return stopped_; });
  }
}

}  // namespace tf_syncrep
