// How long a worker must be allowed to be silent: the rule of the gate's
// roster, applied to what the simulator has seen of the worker.

#ifndef TESTS_SIMULATOR_SILENCE_H_
#define TESTS_SIMULATOR_SILENCE_H_

#include <algorithm>
#include <cstdint>

#include "tests/simulator/call.h"

namespace tf_syncrep::simulator {

// Follows one worker. If it came back from a silence, in its pushes or in a
// step after its first, it may then be silent for twice as long.
class Silence {
 public:
  using Time = SyncGate::Time;

  void Ask(uint64_t life, bool is_first, Time now) {
    if (life < life_) {
      return;  // it is dead
    }
    if (life > life_) {
      *this = {};
      life_ = life;
    }
    has_started_ &= !is_first && !is_expected_;
    is_expected_ = computes_ = pushes_ = false;
    seen_ = now;
  }

  void Grant(uint64_t life, const SyncGate::Permit& permit, Time now) {
    if (life == life_) {
      computes_ = true;
      permit_ = permit;
      since_ = seen_ = now;
    }
  }

  // Notes an admit and its outcome.
  void Admit(uint64_t life, int64_t generation, int64_t round, bool admitted,
             Time now) {
    if (life != life_) {
      return;
    }
    seen_ = now;
    if (computes_ && IsOf(generation, round)) {
      Learn(now);
      has_started_ = true;
      computes_ = false;
    }
    if (admitted) {
      pushes_ = IsOf(generation, round);
      since_ = now;
    }
  }

  void Commit(uint64_t life, int64_t generation, int64_t round, Time now) {
    if (life != life_) {
      return;
    }
    seen_ = now;
    if (pushes_ && IsOf(generation, round)) {
      Learn(now);
      pushes_ = false;
    }
  }

  // Notes another call that shows that the worker lives, and ends its step.
  void Stop(uint64_t life, Time now) {
    if (life == life_) {
      seen_ = now;
      computes_ = pushes_ = false;
    }
  }

  // Notes that it may have to begin anew, with a first step.
  void Open() { is_expected_ = true; }

  // Whether the gate may take the worker for dead by now.
  bool MayBeDead(Time lease, Time start_lease, Time now) const {
    const Time longest = std::min(longest_, std::max(lease, start_lease));
    return now - seen_ >= (has_started_ ? std::max(lease, 2 * longest) : lease);
  }

 private:
  bool IsOf(int64_t generation, int64_t round) const {
    return permit_.generation == generation && permit_.round == round;
  }
  void Learn(Time now) {
    longest_ = has_started_ ? std::max(longest_, now - since_) : longest_;
  }

  uint64_t life_ = 0;
  bool has_started_ = false;
  bool is_expected_ = false;
  bool computes_ = false;
  bool pushes_ = false;
  SyncGate::Permit permit_;
  Time since_{0};
  Time seen_{0};
  Time longest_{0};
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_SILENCE_H_
