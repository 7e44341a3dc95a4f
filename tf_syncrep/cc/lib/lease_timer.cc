#include "tf_syncrep/cc/lib/lease_timer.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "tf_syncrep/cc/lib/detached_thread.h"

namespace tf_syncrep {
namespace {

constexpr char kThreadName[] = "tfs_leases";

// When to try again what there was no memory for.
constexpr std::chrono::seconds kPause(1);

// Calls `work`. Returns false if there was no memory for it: nobody would catch
// the exception, and the process would end.
template <typename Work>
bool HasMemoryFor(const Work& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

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
            while (!HasMemoryFor(shut_down)) {
              std::this_thread::sleep_for(kPause);
            }
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
    Time next = SteadyTime() + kPause;
    static_cast<void>(HasMemoryFor([&] { next = poll(); }));
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
