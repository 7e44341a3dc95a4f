// How long steps and pushes take, learnt from the latest of them.

#ifndef TF_SYNCREP_CC_LIB_GATE_PACE_H_
#define TF_SYNCREP_CC_LIB_GATE_PACE_H_

#include <array>
#include <cstddef>
#include <set>

#include "tf_syncrep/cc/lib/gate/gate_types.h"
#include "tf_syncrep/cc/lib/gate/ledger.h"

namespace tf_syncrep {

// The last durations of something.
class Durations {
 public:
  // Fewer durations are not enough to judge by.
  static constexpr size_t kFewest = 8;

  void Learn(GateTime duration);
  bool are_known() const { return num_ >= kFewest; }
  // Returns the duration that a share of all, in [0, 1), is below. At least one
  // must be known.
  GateTime Quantile(double share) const;

 private:
  static constexpr size_t kMost = 64;

  std::array<GateTime, kMost> last_{};
  size_t num_ = 0;
  size_t next_ = 0;
};

// Says which permit is overdue, so that an idle worker may have a spare beside
// it, and which push takes so long that it is better to void its round. So a
// slow worker costs a round a fraction of a step, and a dead one a few steps
// instead of a lease. While all workers are about equally fast, nothing is
// overdue.
//
// A permit is overdue
//  - after one and a half times what four of five of the last steps needed, or
//    a quarter more than nine of ten, and not before its holder's own last step
//    would be over;
//  - while only a few steps are known, first ones included, after four times
//    the longest of them;
//  - at once for an idle worker whose own step would be over much sooner than
//    the rest of its holder's, going by the last step of each.
class Pace {
 public:
  static constexpr GateTime kNever = GateTime::max();

  // `is_first` is true for a worker's first step, in which functions may have
  // been compiled.
  void LearnStep(GateTime step, bool is_first);
  void LearnPush(GateTime push);

  // The longest remaining time of the steps of these permits, if each takes as
  // long as its holder's last step; kNever if a permit is overdue for anybody.
  GateTime LongestRest(const LonePermits& permits, GateTime now) const;

  // Whether a permit whose step has `rest` left is overdue for an idle worker
  // whose last step took `idle_step`, or for one of several idle workers.
  bool IsOverdue(GateTime rest, GateTime idle_step) const;
  bool IsOverdue(GateTime rest,
                 const std::multiset<GateTime>& idle_steps) const;

  // Returns the oldest permit that is overdue for the worker `idle`, which
  // holds none. There must be such a permit, as IsOverdue() of the longest rest
  // tells.
  GateAccount* FindOverdue(const LonePermits& permits, const GateAccount& idle,
                           GateTime now) const;

  // The first time later than `after` at which one of these permits is overdue
  // for anybody. It does not depend on which workers are idle.
  GateTime NextOverdue(const LonePermits& permits, GateTime after) const;

  // How long a push may last while others wait for it. It is kNever while too
  // few pushes are known.
  GateTime push_limit() const { return push_limit_; }

 private:
  // When the permit is overdue for anybody.
  GateTime OverdueAt(const GateAccount& holder) const;
  // The remaining time of this permit's step, or kNever if it is overdue.
  GateTime Rest(const GateAccount& holder, GateTime now) const;
  void LearnPushLimit();

  Durations steps_;
  Durations pushes_;
  GateTime longest_of_few_{0};  // zero if no step is known
  GateTime median_step_{0};     // zero while too few steps are known
  GateTime step_limit_ = kNever;
  GateTime push_limit_ = kNever;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_PACE_H_
