// The thread that ends waits when leases end.

#ifndef TF_SYNCREP_CC_LIB_LEASE_TIMER_H_
#define TF_SYNCREP_CC_LIB_LEASE_TIMER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// Looks after a gate or a work queue while it is in use, and then ends its
// waits. Only the thread does either, so that whoever drops the last reference
// does not: it may hold a lock of TensorFlow's that a callback needs, or be
// such a callback, in this very thread.
class LeaseTimer {
 public:
  using Time = std::chrono::nanoseconds;

  // What wakes the thread. It may outlive the timer.
  class Bell {
   public:
    // Makes the thread call Poll() at once.
    void Ring();

   private:
    friend class LeaseTimer;

    Mutex mu_;
    bool rung_ TF_SYNCREP_GUARDED_BY(mu_) = false;
    bool stopped_ TF_SYNCREP_GUARDED_BY(mu_) = false;
    CondVar changed_;  // of either
  };

  // Nanoseconds of std::chrono::steady_clock.
  static Time SteadyTime();

  // `ledger` has Poll(), which returns when to call it again, and Shutdown();
  // it runs on SteadyTime(), and both are called without a lock held. Poll() is
  // called whenever a lease may have ended and at least every `period`: leases
  // that begin while the thread sleeps end at most that much late, unless its
  // bell is rung. Where there is no thread, is_running() is false, and nobody
  // looks after the ledger.
  template <typename Ledger>
  LeaseTimer(const std::shared_ptr<Ledger>& ledger, Time period,
             std::shared_ptr<Bell> bell = std::make_shared<Bell>())
      : LeaseTimer([ledger] { return ledger->Poll(); },
                   [ledger] { ledger->Shutdown(); }, period, std::move(bell)) {}

  // Returns at once. The thread finishes what it is doing, calls Shutdown(),
  // releases the ledger and ends.
  ~LeaseTimer();

  // Whether it has its thread.
  bool is_running() const { return is_running_; }

  LeaseTimer(const LeaseTimer&) = delete;
  LeaseTimer& operator=(const LeaseTimer&) = delete;

 private:
  LeaseTimer(std::function<Time()> poll, std::function<void()> shut_down,
             Time period, std::shared_ptr<Bell> bell);

  static void PollUntilStopped(const std::function<Time()>& poll, Time period,
                               Bell& bell);

  const std::shared_ptr<Bell> bell_;  // the thread's too
  const bool is_running_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_LEASE_TIMER_H_
