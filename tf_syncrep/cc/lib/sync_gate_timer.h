// The thread that ends a gate's waits when leases end.

#ifndef TF_SYNCREP_CC_LIB_SYNC_GATE_TIMER_H_
#define TF_SYNCREP_CC_LIB_SYNC_GATE_TIMER_H_

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tf_syncrep/cc/lib/sync_gate.h"

namespace tf_syncrep {

// Calls Poll() on a gate that runs on SteadyTime(), whenever a lease may have
// ended and at least every `period`: leases that begin while it sleeps end at
// most that much late.
class SyncGateTimer {
 public:
  // Nanoseconds of std::chrono::steady_clock, the clock of such a gate.
  static SyncGate::Time SteadyTime();

  // `gate` must outlive the timer.
  SyncGateTimer(SyncGate* gate, SyncGate::Time period);

  // Returns when the thread has ended.
  ~SyncGateTimer();

  SyncGateTimer(const SyncGateTimer&) = delete;
  SyncGateTimer& operator=(const SyncGateTimer&) = delete;

 private:
  void PollUntilStopped();

  SyncGate* const gate_;
  const SyncGate::Time period_;
  std::mutex mu_;  // guards stopped_
  bool stopped_ = false;
  std::condition_variable wake_up_;
  std::thread thread_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_SYNC_GATE_TIMER_H_
