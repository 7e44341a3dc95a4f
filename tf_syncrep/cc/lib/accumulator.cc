#include "tf_syncrep/cc/lib/accumulator.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tf_syncrep {

GradientSum& TakenGradients::Merged(Sharder& sharder) {
  while (sums.size() > 1) {
    sums[0]->Merge(*sums[1], sharder);
    sums.erase(sums.begin() + 1);
  }
  return *sums[0];
}

bool Accumulator::DropIfStale(int64_t step) {
  const MutexLock lock(mu_);
  return CountIfStale(step);
}

Accumulator::PushResult Accumulator::Push(
    int64_t step, const std::vector<int64_t>& shape,
    const std::function<bool(GradientSum&, bool)>& add, Sharder& sharder,
    std::vector<int64_t>* held_shape) {
  std::vector<StepSum> discarded;
  std::vector<Served> served;
  waiting_pushes_.fetch_add(1);
  {
    const MutexLock lock(mu_);
    const bool others_wait = waiting_pushes_.fetch_sub(1) > 1;
    if (CountIfStale(step)) {
      return PushResult::kStale;
    }
    if (mode_ == AccumulatorMode::kRound && step > step_) {
      DiscardExcept([](int64_t, int64_t) { return false; }, step, &discarded);
      step_ = step;
    }
    if (num_held_ > 0 && shape != shape_) {
      *held_shape = shape_;
      return PushResult::kShapeMismatch;
    }
    const auto sum = SumFor(step, sharder);
    if (!add(*sum->sum, others_wait)) {
      if (sum->num_gradients == 0) {
        sums_.erase(sum);
      }
      return PushResult::kOutOfMemory;
    }
    shape_ = shape;
    ++sum->num_gradients;
    ++num_held_;
    ++counts_.pushed;
    ++counts_.accepted;
    served = ServeWaiting();
  }
  Tell(std::move(served));
  return PushResult::kAccepted;
}

void Accumulator::Take(const std::shared_ptr<PendingTake>& take) {
  std::vector<Served> served;
  {
    const MutexLock lock(mu_);
    if (take->cancelled_) {
      served.push_back({take, {}});
    } else {
      waiting_.push_back(take);
      served = ServeWaiting();
    }
  }
  Tell(std::move(served));
}

void Accumulator::Cancel(const std::shared_ptr<PendingTake>& take) {
  std::vector<Served> served;
  {
    const MutexLock lock(mu_);
    take->cancelled_ = true;
    const auto place = std::find(waiting_.begin(), waiting_.end(), take);
    if (place == waiting_.end()) {
      return;  // The take has not been queued yet, or has ended.
    }
    waiting_.erase(place);
    served.push_back({take, {}});
    // The take may have stood before others that need fewer gradients.
    for (Served& other : ServeWaiting()) {
      served.push_back(std::move(other));
    }
  }
  Tell(std::move(served));
}

bool Accumulator::TakeRound(
    int64_t round, int64_t num_gradients, TakenGradients* taken,
    int64_t* held_round, int64_t* num_held,
    const std::function<bool(const std::vector<int64_t>&)>& prepare) {
  const MutexLock lock(mu_);
  *held_round = step_;
  *num_held = num_held_;
  if (round != step_ || num_gradients != num_held_ || num_held_ == 0) {
    return false;
  }
  if (prepare != nullptr && !prepare(shape_)) {
    return false;
  }
  *taken = TakeAll();
  return true;
}

int64_t Accumulator::SetStep(int64_t step) {
  std::vector<StepSum> discarded;
  const MutexLock lock(mu_);
  if (mode_ == AccumulatorMode::kRound) {
    DiscardExcept([](int64_t held, int64_t s) { return held == s; }, step,
                  &discarded);
  } else {
    DiscardExcept([](int64_t held, int64_t s) { return held >= s; }, step,
                  &discarded);
  }
  return std::exchange(step_, step);
}

int64_t Accumulator::num_held() const {
  const MutexLock lock(mu_);
  return num_held_;
}

AccumulatorStats Accumulator::stats() const {
  const MutexLock lock(mu_);
  AccumulatorStats stats = counts_;
  stats.step = step_;
  stats.held = num_held_;
  for (const StepSum& sum : sums_) {
    stats.bytes += sum.sum->held_bytes();
  }
  return stats;
}

bool Accumulator::CountIfStale(int64_t step) {
  if (step >= step_) {
    return false;
  }
  ++counts_.pushed;
  ++counts_.stale;
  return true;
}

std::vector<Accumulator::StepSum>::iterator Accumulator::SumFor(
    int64_t step, Sharder& sharder) {
  const auto is_before = [](const StepSum& sum, int64_t s) {
    return sum.step < s;
  };
  auto place = std::lower_bound(sums_.begin(), sums_.end(), step, is_before);
  if (place != sums_.end() && place->step == step) {
    return place;
  }
  if (sums_.size() == kMaxSums) {
    sums_[0].sum->Merge(*sums_[1].sum, sharder);
    sums_[0].num_gradients += sums_[1].num_gradients;
    sums_.erase(sums_.begin() + 1);
    place = std::lower_bound(sums_.begin(), sums_.end(), step, is_before);
  }
  return sums_.insert(place, {step, 0, make_sum_()});
}

void Accumulator::DiscardExcept(bool (*keep)(int64_t held, int64_t step),
                                int64_t step, std::vector<StepSum>* discarded) {
  std::vector<StepSum> kept;
  for (StepSum& sum : sums_) {
    if (keep(sum.step, step)) {
      kept.push_back(std::move(sum));
      continue;
    }
    num_held_ -= sum.num_gradients;
    counts_.voided += sum.num_gradients;
    discarded->push_back(std::move(sum));
  }
  sums_ = std::move(kept);
}

TakenGradients Accumulator::TakeAll() {
  TakenGradients taken;
  for (StepSum& sum : sums_) {
    taken.sums.push_back(std::move(sum.sum));
  }
  sums_.clear();
  taken.num_gradients = std::exchange(num_held_, 0);
  taken.shape = shape_;
  counts_.taken += taken.num_gradients;
  ++counts_.takes;
  if (step_ < std::numeric_limits<int64_t>::max()) {
    ++step_;
  }
  return taken;
}

std::vector<Accumulator::Served> Accumulator::ServeWaiting() {
  std::vector<Served> served;
  while (!waiting_.empty() && num_held_ >= waiting_.front()->num_required_) {
    served.push_back({std::move(waiting_.front()), TakeAll()});
    waiting_.pop_front();
  }
  return served;
}

void Accumulator::Tell(std::vector<Served> served) {
  for (Served& one : served) {
    // The callback is moved out first, since it may own the last reference to
    // the take.
    const auto done = std::move(one.take->done_);
    done(std::move(one.taken));
  }
}

}  // namespace tf_syncrep
