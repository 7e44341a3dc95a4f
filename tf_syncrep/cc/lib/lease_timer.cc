#include "tf_syncrep/cc/lib/lease_timer.h"

#include <algorithm>
#include <utility>

#include "tf_syncrep/cc/lib/detached_thread.h"

namespace tf_syncrep {
namespace {

constexpr char kThreadName[] = "tfs_leases";

}  // namespace

LeaseTimer::Time LeaseTimer::SteadyTime() {
  return std::chrono::duration_cast<Time>(
      std::chrono::steady_clock::now().time_since_epoch());
}

void LeaseTimer::Bell::Ring() {
  {
    const MutexLock lock(mu_);
    rung_ = true;
  }
  changed_.NotifyAll();
}

LeaseTimer::LeaseTimer(std::function<Time()> poll,
                       std::function<void()> shut_down, Time period,
                       std::shared_ptr<Bell> bell)
    : bell_(std::move(bell)),
      is_running_(StartDetachedThread(
          kThreadName, [bell = bell_, poll = std::move(poll),
                        shut_down = std::move(shut_down), period] {
            PollUntilStopped(poll, period, *bell);
            shut_down();
          })) {}

LeaseTimer::~LeaseTimer() {
  {
    const MutexLock lock(bell_->mu_);
    bell_->stopped_ = true;
  }
  bell_->changed_.NotifyAll();
}

void LeaseTimer::PollUntilStopped(const std::function<Time()>& poll,
                                  Time period, Bell& bell) {
  MutexLock lock(bell.mu_);
  while (!bell.stopped_) {
    bell.rung_ = false;
    // Poll() calls callbacks, which must not run under a lock.
    lock.Unlock();
    const Time next = poll();
    const Time now = SteadyTime();
    const auto until = std::chrono::steady_clock::now() +
                       std::clamp(next - now, Time(0), period);
    lock.Lock();
    while (!bell.stopped_ && !bell.rung_ &&
           !bell.changed_.WaitUntil(bell.mu_, until)) {
    }
  }
}

}  // namespace tf_syncrep
