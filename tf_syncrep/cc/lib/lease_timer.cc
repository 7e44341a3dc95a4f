#include "tf_syncrep/cc/lib/lease_timer.h"

#include <algorithm>
#include <utility>

namespace tf_syncrep {

LeaseTimer::Time LeaseTimer::SteadyTime() {
  return std::chrono::duration_cast<Time>(
      std::chrono::steady_clock::now().time_since_epoch());
}

void LeaseTimer::Bell::Ring() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    rung_ = true;
  }
  changed_.notify_all();
}

LeaseTimer::LeaseTimer(std::function<Time()> poll, Time period,
                       std::shared_ptr<Bell> bell)
    : poll_(std::move(poll)),
      period_(period),
      bell_(std::move(bell)),
      thread_([this] { PollUntilStopped(); }) {}

LeaseTimer::~LeaseTimer() {
  {
    std::lock_guard<std::mutex> lock(bell_->mu_);
    bell_->stopped_ = true;
  }
  bell_->changed_.notify_all();
  thread_.join();
}

void LeaseTimer::PollUntilStopped() {
  std::unique_lock<std::mutex> lock(bell_->mu_);
  while (!bell_->stopped_) {
    bell_->rung_ = false;
    // It calls callbacks, which must not run under a lock.
    lock.unlock();
    const Time next = poll_();
    const Time now = SteadyTime();
    const Time sleep = std::clamp(next - now, Time(0), period_);
    lock.lock();
    bell_->changed_.wait_for(
        lock, sleep, [this] { return bell_->stopped_ || bell_->rung_; });
  }
}

}  // namespace tf_syncrep
