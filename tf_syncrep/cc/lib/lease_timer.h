// The thread that ends waits when leases end.

#ifndef TF_SYNCREP_CC_LIB_LEASE_TIMER_H_
#define TF_SYNCREP_CC_LIB_LEASE_TIMER_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace tf_syncrep {

// Calls `poll`, the Poll() of something that runs on SteadyTime(), whenever a
// lease may have ended and at least every `period`: leases that begin while it
// sleeps end at most that much late, unless its bell is rung.
class LeaseTimer {
 public:
  using Time = std::chrono::nanoseconds;

  // What wakes the thread. It may outlive the timer.
  class Bell {
   public:
    // Has `poll` called at once.
    void Ring();

   private:
    friend class LeaseTimer;

    std::mutex mu_;  // guards the two below
    bool rung_ = false;
    bool stopped_ = false;
    std::condition_variable changed_;
  };

  // Nanoseconds of std::chrono::steady_clock.
  static Time SteadyTime();

  // `poll` returns when to call it again, and is called without a lock held.
  LeaseTimer(std::function<Time()> poll, Time period,
             std::shared_ptr<Bell> bell = std::make_shared<Bell>());

  // Returns when the thread has ended.
  ~LeaseTimer();

  LeaseTimer(const LeaseTimer&) = delete;
  LeaseTimer& operator=(const LeaseTimer&) = delete;

 private:
  void PollUntilStopped();

  const std::function<Time()> poll_;
  const Time period_;
  const std::shared_ptr<Bell> bell_;
  std::thread thread_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_LEASE_TIMER_H_
