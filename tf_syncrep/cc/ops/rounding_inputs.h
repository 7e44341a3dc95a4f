// The input and the attributes of stochastic rounding, which the ops that
// update a resource variable share.

#ifndef TF_SYNCREP_CC_OPS_ROUNDING_INPUTS_H_
#define TF_SYNCREP_CC_OPS_ROUNDING_INPUTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/ops/update_shapes.h"

namespace tf_syncrep {

inline constexpr const char* kRoundingCount = "rounding_count";

// Reads whether an op that may have a count has one. `Context` is an
// InferenceContext or an OpKernelConstruction.
template <typename Context>
absl::Status FindRoundingCount(Context& context, bool* is_given) {
  int64_t num;
  TF_RETURN_IF_ERROR(context.GetAttr("num_rounding_counts", &num));
  if (num > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kRoundingCount, " must be at most one variable, but there are ", num));
  }
  *is_given = num == 1;
  return absl::OkStatus();
}

// Checks the count at `input`.
inline absl::Status CheckRoundingCountShape(
    tensorflow::shape_inference::InferenceContext* c, int input) {
  return CheckOneElement(c, kRoundingCount,
                         VariableShape</*kIsResource=*/true>(c, input));
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_ROUNDING_INPUTS_H_
