// Stochastic rounding in the kernels that update a resource variable: the count
// of its updates, and the random numbers of each.

#ifndef TF_SYNCREP_CC_KERNELS_ROUNDING_OP_H_
#define TF_SYNCREP_CC_KERNELS_ROUNDING_OP_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/update_checks.h"
#include "tf_syncrep/cc/lib/rules/stochastic_rounding.h"
#include "tf_syncrep/cc/ops/rule_inputs.h"
#include "tf_syncrep/cc/tf/locked_variables.h"

namespace tf_syncrep {

// The attributes of an op. Those without a count may not have them.
class RoundingAttributes {
 public:
  // `num_inputs` is the number of the op's inputs without a count.
  absl::Status Find(tensorflow::OpKernelConstruction* ctx, int num_inputs) {
    TF_RETURN_IF_ERROR(CheckNumRoundingCounts(ctx->num_inputs() - num_inputs));
    has_count_ = ctx->num_inputs() > num_inputs;
    if (!has_count_) {
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(ctx->GetAttr("rounding_seed", &seed_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("first_row", &first_row_));
    return ctx->GetAttr("row_stride", &row_stride_);
  }

  bool has_count() const { return has_count_; }

  RoundingDraws DrawsOf(int64_t update) const {
    return {seed_, update, first_row_, row_stride_};
  }

 private:
  bool has_count_ = false;
  int64_t seed_ = 0;
  int64_t first_row_ = 0;
  int64_t row_stride_ = 1;
};

// The count of one call. Without a count its functions do nothing.
class RoundingCount {
 public:
  explicit RoundingCount(const RoundingAttributes& attributes)
      : attributes_(attributes) {}

  // Appends a request for the count, which is the op's last input.
  void Request(tensorflow::OpKernelContext* ctx,
               std::vector<LockedVariables::Request>* requests) {
    if (attributes_.has_count()) {
      place_ = static_cast<int>(requests->size());
      requests->push_back({ctx->num_inputs() - 1, kRoundingCount,
                           tensorflow::DT_INT64,
                           LockedVariables::Access::kExclusive});
    }
  }

  // Checks the count, which is locked, and makes it safe to write.
  absl::Status Prepare(tensorflow::OpKernelContext* ctx,
                       LockedVariables& variables) const {
    if (!attributes_.has_count()) {
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(
        CheckOneElement(kRoundingCount, variables.tensor(place_).shape()));
    return variables.PrepareToWrite(ctx, place_);
  }

  // Counts an update. Cannot fail.
  void Take(LockedVariables& variables) {
    if (attributes_.has_count()) {
      draws_ = attributes_.DrawsOf(--*variables.data<int64_t>(place_));
    }
  }

  // Lets others count, who would otherwise wait for the whole update.
  void Unlock(LockedVariables& variables) const {
    if (attributes_.has_count()) {
      variables.Unlock(place_);
    }
  }

  // The random numbers of the update that was counted; null without a count.
  const RoundingDraws* draws() const {
    return draws_.has_value() ? &*draws_ : nullptr;
  }

 private:
  const RoundingAttributes& attributes_;
  int place_ = -1;
  std::optional<RoundingDraws> draws_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_ROUNDING_OP_H_
