// The thread that ends waits when leases end.

#ifndef TF_SYNCREP_CC_LIB_LEASE_TIMER_H_
#define TF_SYNCREP_CC_LIB_LEASE_TIMER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// Polls a gate or a work queue while it is in use, and then ends its waits.
// Both happen only on this thread, and not where the last reference is dropped:
// that thread may hold a lock of TensorFlow's that a callback needs, or may run
// such a callback itself.
class LeaseTimer {
 public:
  using Time = std::chrono::nanoseconds;

  // Wakes the thread. It may outlive the timer.
  class Bell {
   public:
    // Makes the thread call Poll() at once.
    void Ring();

   private:
    friend class LeaseTimer;

    Mutex mu_;
    bool rung_ TF_SYNCREP_GUARDED_BY(mu_) = false;
    bool stopped_ TF_SYNCREP_GUARDED_BY(mu_) = false;
    CondVar changed_;  // notified when either field changes
  };

  // Nanoseconds of std::chrono::steady_clock.
  static Time SteadyTime();

  // `ledger` has Poll(), which returns when to call it again, and Shutdown().
  // It uses SteadyTime(), and both are called without a lock held. Poll() is
  // called whenever a lease may have ended, and at least every `period`: leases
  // that begin while the thread sleeps end at most that late, unless the bell
  // is rung. Where there is no memory for either, it is called again soon. If
  // no thread could be started, is_running() is false, and nobody polls the
  // ledger.
  template <typename Ledger>
  LeaseTimer(const std::shared_ptr<Ledger>& ledger, Time period,
             std::shared_ptr<Bell> bell = std::make_shared<Bell>())
      : LeaseTimer([ledger] { return ledger->Poll(); },
                   [ledger] { ledger->Shutdown(); }, period, std::move(bell)) {}

  // Returns at once. The thread finishes what it is doing, calls Shutdown(),
  // releases the ledger and ends.
  ~LeaseTimer();

  bool is_running() const { return is_running_; }

  LeaseTimer(const LeaseTimer&) = delete;
  LeaseTimer& operator=(const LeaseTimer&) = delete;

 private:
  LeaseTimer(std::function<Time()> poll, std::function<void()> shut_down,
             Time period, std::shared_ptr<Bell> bell);

  static void PollUntilStopped(const std::function<Time()>& poll, Time period,
                               Bell& bell);

  const std::shared_ptr<Bell> bell_;  // shared with the thread
  const bool is_running_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_LEASE_TIMER_H_
