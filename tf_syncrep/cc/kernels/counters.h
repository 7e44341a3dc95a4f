// The outputs of ops that tell counters by their names.

#ifndef TF_SYNCREP_CC_KERNELS_COUNTERS_H_
#define TF_SYNCREP_CC_KERNELS_COUNTERS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/tstring.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

using Counters = std::vector<std::pair<const char*, int64_t>>;

// Makes vectors of the names and of the values the op's outputs 0 and 1.
inline absl::Status SetCounters(tensorflow::OpKernelContext* ctx,
                                const Counters& counters) {
  const auto size = static_cast<int64_t>(counters.size());
  tensorflow::Tensor* names;
  tensorflow::Tensor* values;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {size}, &names));
  TF_RETURN_IF_ERROR(ctx->allocate_output(1, {size}, &values));
  for (int64_t i = 0; i < size; ++i) {
    Data<tensorflow::tstring>(*names)[i] = counters[i].first;
    Data<int64_t>(*values)[i] = counters[i].second;
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_COUNTERS_H_
