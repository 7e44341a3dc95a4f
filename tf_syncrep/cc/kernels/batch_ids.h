// The ids of a batch's features, which are the inputs of an op, and where its
// output "places" says that each of them is.

#ifndef TF_SYNCREP_CC_KERNELS_BATCH_IDS_H_
#define TF_SYNCREP_CC_KERNELS_BATCH_IDS_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/lib/rows/feature_ranges.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

inline IdsOfFeature IdsOf(const tensorflow::Tensor& ids) {
  const bool are_int64 = ids.dtype() == tensorflow::DT_INT64;
  return {are_int64 ? nullptr : Data<const int32_t>(ids),
          are_int64 ? Data<const int64_t>(ids) : nullptr, ids.NumElements()};
}

// How many ids all inputs have. Errors: InvalidArgument if there are too many
// for places to be counted.
inline absl::Status CountIds(tensorflow::OpKernelContext* ctx,
                             int64_t* num_ids) {
  *num_ids = 0;
  for (int f = 0; f < ctx->num_inputs(); ++f) {
    *num_ids += ctx->input(f).NumElements();
  }
  if (*num_ids < std::numeric_limits<int32_t>::max()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a batch must have fewer than 2^31 ids, but has ", *num_ids));
}

// Writes the output "places": for each feature, of the shape of its ids.
template <typename Found>
absl::Status WritePlaces(tensorflow::OpKernelContext* ctx, const Found& found) {
  tensorflow::OpOutputList places;
  TF_RETURN_IF_ERROR(ctx->output_list("places", &places));
  for (int f = 0; f < places.size(); ++f) {
    tensorflow::Tensor* output;
    TF_RETURN_IF_ERROR(places.allocate(f, ctx->input(f).shape(), &output));
    found.WritePlaces(f, Data<int32_t>(*output));
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_BATCH_IDS_H_
