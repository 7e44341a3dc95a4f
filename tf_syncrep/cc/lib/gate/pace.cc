#include "tf_syncrep/cc/lib/gate/pace.h"

#include <algorithm>

namespace tf_syncrep {
namespace {

// A push that has lasted less is not taken for stuck, since the machine may
// only be busy with something else.
constexpr GateTime kShortestPushLimit = std::chrono::seconds(1);

// A step that has lasted less is not taken for slow, and a spare has to gain at
// least this much: on a busy machine the lengths of short steps vary by as
// much.
constexpr GateTime kShortestStepLimit = std::chrono::milliseconds(50);

// By which factor the rest of the holder's step must be longer than the idle
// worker's own step.
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

GateTime Pace::LongestRest(const LonePermits& permits, GateTime now) const {
  if (permits.empty()) {
    return GateTime(0);
  }
  return NextOverdue(permits, GateTime::min()) <= now
             ? kNever
             : permits.last_end() - now;
}

bool Pace::IsOverdue(GateTime rest, GateTime idle_step) const {
  const GateTime own_step = idle_step > GateTime(0) ? idle_step : median_step_;
  return rest == kNever ||
         (own_step > GateTime(0) &&
          rest > std::max(kShortestStepLimit, Times(kWorthASpare, own_step)));
}

bool Pace::IsOverdue(GateTime rest,
                     const std::multiset<GateTime>& idle_steps) const {
  // These are the fastest idle workers: of those whose last step is not known,
  // and of the others.
  for (const auto step :
       {idle_steps.begin(), idle_steps.upper_bound(GateTime(0))}) {
    if (step != idle_steps.end() && IsOverdue(rest, *step)) {
      return true;
    }
  }
  return false;
}

GateAccount* Pace::FindOverdue(const LonePermits& permits,
                               const GateAccount& idle, GateTime now) const {
  const auto& holders = permits.by_order();
  return std::find_if(holders.begin(), holders.end(),
                      [&](const auto& entry) {
                        return IsOverdue(Rest(*entry.second, now),
                                         idle.last_step);
                      })
      ->second;
}

GateTime Pace::NextOverdue(const LonePermits& permits, GateTime after) const {
  GateTime next = kNever;
  for (const auto& [order, holder] : permits.by_order()) {
    if (step_limit_ == kNever || holder->since + step_limit_ >= next) {
      // Neither this permit nor those granted later are overdue any sooner.
      break;
    }
    const GateTime at = OverdueAt(*holder);
    if (at > after) {
      next = std::min(next, at);
    }
  }
  return next;
}

GateTime Pace::OverdueAt(const GateAccount& holder) const {
  return step_limit_ == kNever
             ? kNever
             : std::max(holder.since + step_limit_, holder.permit_end);
}

GateTime Pace::Rest(const GateAccount& holder, GateTime now) const {
  return OverdueAt(holder) <= now ? kNever : holder.permit_end - now;
}

}  // namespace tf_syncrep
