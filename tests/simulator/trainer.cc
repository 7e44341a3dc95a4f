#include "tests/simulator/trainer.h"

#include <algorithm>

#include "tests/simulator/random.h"

namespace tf_syncrep::simulator {

void Trainer::Next() {
  if (!rows_.empty()) {
    Call call = NewCall(CallKind::kGradient, cluster().TableTask());
    call.keys = keys_;
    call.rows = rows_;
    call.gradient = static_cast<double>(num_batches_ + 1);
    Send(std::move(call));
    return;
  }
  Random random(static_cast<uint64_t>(int64_t{1'000'000} * task().number +
                                      ++num_batches_));
  const int64_t num_keys = cluster().setup.num_keys;
  keys_.clear();
  for (int64_t i = random.Pick(3); i >= 0; --i) {
    // Some keys come more often than others.
    keys_.push_back(std::min(random.Pick(num_keys), random.Pick(num_keys)));
  }
  std::sort(keys_.begin(), keys_.end());
  keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
  Call call = NewCall(CallKind::kFind, cluster().TableTask());
  call.keys = keys_;
  Send(std::move(call));
}

void Trainer::Take(Call* call) {
  rows_.clear();
  if (call->kind == CallKind::kFind && call->status.ok()) {
    rows_ = call->rows;
  }
}

void Trainer::GoOn() {
  if (error() != nullptr) {
    rows_.clear();
    Rest();
  }
}

}  // namespace tf_syncrep::simulator
