#include "tf_syncrep/cc/lib/accumulator.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tf_syncrep {

bool Accumulator::DropIfStale(int64_t step) {
  const MutexLock lock(mu_);
  return CountIfStale(step);
}

Accumulator::PushResult Accumulator::Push(
    int64_t step, const std::vector<int64_t>& shape,
    const std::function<bool(GradientSum&, bool)>& add,
    std::vector<int64_t>* held_shape) {
  std::unique_ptr<GradientSum> discarded;
  std::vector<Served> served;
  waiting_pushes_.fetch_add(1);
  {
    const MutexLock lock(mu_);
    const bool others_wait = waiting_pushes_.fetch_sub(1) > 1;
    if (CountIfStale(step)) {
      return PushResult::kStale;
    }
    if (mode_ == AccumulatorMode::kRound && step > step_) {
      discarded = Discard();
      step_ = step;
    }
    if (num_held_ > 0 && shape != shape_) {
      *held_shape = shape_;
      return PushResult::kShapeMismatch;
    }
    if (sum_ == nullptr) {
      sum_ = make_sum_();
    }
    if (!add(*sum_, others_wait)) {
      if (num_held_ == 0) {
        sum_ = nullptr;
      }
      return PushResult::kOutOfMemory;
    }
    shape_ = shape;
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

bool Accumulator::TakeRound(int64_t round, int64_t num_gradients,
                            TakenGradients* taken, int64_t* held_round,
                            int64_t* num_held) {
  const MutexLock lock(mu_);
  *held_round = step_;
  *num_held = num_held_;
  if (round != step_ || num_gradients != num_held_ || num_held_ == 0) {
    return false;
  }
  *taken = TakeAll();
  return true;
}

int64_t Accumulator::SetStep(int64_t step) {
  std::unique_ptr<GradientSum> discarded;
  const MutexLock lock(mu_);
  if (mode_ == AccumulatorMode::kRound && step != step_) {
    discarded = Discard();
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
  stats.bytes = sum_ == nullptr ? 0 : sum_->held_bytes();
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

std::unique_ptr<GradientSum> Accumulator::Discard() {
  counts_.voided += std::exchange(num_held_, 0);
  return std::move(sum_);
}

TakenGradients Accumulator::TakeAll() {
  TakenGradients taken;
  taken.sum = std::move(sum_);
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
