// The input and the attributes of stochastic rounding, which the ops that
// update a resource variable share.

#ifndef TF_SYNCREP_CC_OPS_ROUNDING_INPUTS_H_
#define TF_SYNCREP_CC_OPS_ROUNDING_INPUTS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tf_syncrep {

inline constexpr const char* kRoundingCount = "rounding_count";

// Checks how many counts an op has, all of whose other inputs come before.
inline absl::Status CheckNumRoundingCounts(int num) {
  if (num > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kRoundingCount, " must be at most one variable, but there are ", num));
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_ROUNDING_INPUTS_H_
