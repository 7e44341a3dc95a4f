#include "tf_syncrep/cc/lib/gate/pace.h"

#include <algorithm>

namespace tf_syncrep {
namespace {

// A push that is shorter is not taken for stuck: the machine may be busy with
// something else.
constexpr GateTime kShortestPushLimit = std::chrono::seconds(1);

// A step that is shorter is not taken for slow, and a gain of less is not worth
// a spare permit: on a busy machine short steps vary by as much.
constexpr GateTime kShortestStepLimit = std::chrono::milliseconds(50);

// How much sooner than the holder an idle worker must be, in its own steps.
constexpr double kWorthASpare = 1.5;

GateTime Times(double factor, GateTime time) {
  return std::chrono::duration_cast<GateTime>(factor * time);
}

}  // namespace

void Durations::Learn(GateTime duration) {
  last_[next_] = duration;
  next_ = (next_ + 1) % kMost;
  num_ = std::min(num_ + 1, kMost);
}

GateTime Durations::Quantile(double share) const {
  std::array<GateTime, kMost> sorted = last_;
  const auto at =
      sorted.begin() + static_cast<size_t>(share * static_cast<double>(num_));
  std::nth_element(sorted.begin(), at, sorted.begin() + num_);
  return *at;
}

void Pace::LearnStep(GateTime step, bool is_first) {
  if (!is_first) {
    steps_.Learn(step);
  }
  if (!steps_.are_known()) {
    longest_of_few_ = std::max(longest_of_few_, step);
    step_limit_ = 4 * std::max(kShortestStepLimit, longest_of_few_);
  } else if (!is_first) {
    median_step_ = steps_.Quantile(0.5);
    step_limit_ =
        std::max({kShortestStepLimit, Times(1.5, steps_.Quantile(0.8)),
                  Times(1.25, steps_.Quantile(0.9))});
    LearnPushLimit();
  }
}

void Pace::LearnPush(GateTime push) {
  pushes_.Learn(push);
  LearnPushLimit();
}

void Pace::LearnPushLimit() {
  if (pushes_.are_known() && steps_.are_known()) {
    push_limit_ = std::max(
        {kShortestPushLimit, 4 * pushes_.Quantile(0.999), 6 * median_step_});
  }
}

GateAccount* Pace::FindOverdue(const std::vector<GateAccount*>& permits,
                               const GateAccount& idle, GateTime now) const {
  const GateTime own_step =
      idle.last_step > GateTime(0) ? idle.last_step : median_step_;
  const GateTime worth_it =
      own_step == GateTime(0)
          ? kNever
          : std::max(kShortestStepLimit, Times(kWorthASpare, own_step));
  for (GateAccount* holder : permits) {  // the oldest first
    const GateTime rest = holder->since + holder->last_step - now;
    if (holder->spare == nullptr && holder != &idle &&
        (OverdueAt(*holder) <= now || rest > worth_it)) {
      return holder;
    }
  }
  return nullptr;
}

GateTime Pace::NextOverdue(const std::vector<GateAccount*>& permits,
                           GateTime now) const {
  GateTime next = kNever;
  for (const GateAccount* holder : permits) {
    const GateTime at = OverdueAt(*holder);
    if (holder->spare == nullptr && at > now) {
      next = std::min(next, at);
    }
  }
  return next;
}

GateTime Pace::OverdueAt(const GateAccount& holder) const {
  return step_limit_ == kNever
             ? kNever
             : holder.since + std::max(step_limit_, holder.last_step);
}

}  // namespace tf_syncrep
