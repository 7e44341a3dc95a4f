// Scalar outputs of an op.

#ifndef TF_SYNCREP_CC_TF_SCALAR_OUTPUT_H_
#define TF_SYNCREP_CC_TF_SCALAR_OUTPUT_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_syncrep {

// Makes the op's output `index` a scalar of type T.
template <typename T>
absl::Status SetScalarOutput(tensorflow::OpKernelContext* ctx, int index,
                             const T& value) {
  tensorflow::Tensor* output;
  absl::Status status =
      ctx->allocate_output(index, tensorflow::TensorShape({}), &output);
  if (status.ok()) {
    output->scalar<T>()() = value;
  }
  return status;
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_SCALAR_OUTPUT_H_
