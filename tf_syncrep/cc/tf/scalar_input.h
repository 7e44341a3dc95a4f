// Checked access to the scalar inputs of an op.

#ifndef TF_SYNCREP_CC_TF_SCALAR_INPUT_H_
#define TF_SYNCREP_CC_TF_SCALAR_INPUT_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

// InvalidArgument unless the op's input `name` is of rank 0.
inline absl::Status CheckScalarInput(tensorflow::OpKernelContext* ctx,
                                     absl::string_view name) {
  const tensorflow::Tensor* input;
  absl::Status status = ctx->input(name, &input);
  if (!status.ok()) {
    return status;
  }
  if (!tensorflow::TensorShapeUtils::IsScalar(input->shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be a scalar, but has shape ",
                     input->shape().DebugString()));
  }
  return absl::OkStatus();
}

// Copies the op's input `name`, a scalar of type T, into `value`.
template <typename T>
absl::Status ScalarInput(tensorflow::OpKernelContext* ctx,
                         absl::string_view name, T* value) {
  absl::Status status = CheckScalarInput(ctx, name);
  if (!status.ok()) {
    return status;
  }
  const tensorflow::Tensor* input;
  TF_RETURN_IF_ERROR(ctx->input(name, &input));
  *value = *Data<const T>(*input);
  return absl::OkStatus();
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_SCALAR_INPUT_H_
