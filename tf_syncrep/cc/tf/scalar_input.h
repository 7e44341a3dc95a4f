// Checked access to the scalar inputs of an op.

#ifndef TF_SYNCREP_CC_TF_SCALAR_INPUT_H_
#define TF_SYNCREP_CC_TF_SCALAR_INPUT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

// Whose words a message uses: if TensorFlow has an op for the same purpose, its
// messages are kept.
enum class ScalarError : uint8_t { kOurs, kTensorFlows };

// Returns InvalidArgument unless `input`, of this name, has rank 0.
inline absl::Status CheckScalar(const tensorflow::Tensor& input,
                                absl::string_view name,
                                ScalarError error = ScalarError::kOurs) {
  if (!tensorflow::TensorShapeUtils::IsScalar(input.shape())) {
    const std::string shape = input.shape().DebugString();
    return absl::InvalidArgumentError(
        error == ScalarError::kOurs
            ? absl::StrCat(name, " must be a scalar, but has shape ", shape)
            : absl::StrCat("Argument ", name,
                           " must be scalar, but had bad shape ", shape));
  }
  return absl::OkStatus();
}

// The same for the op's input `name`.
inline absl::Status CheckScalarInput(tensorflow::OpKernelContext* ctx,
                                     absl::string_view name,
                                     ScalarError error = ScalarError::kOurs) {
  const tensorflow::Tensor* input;
  absl::Status status = ctx->input(name, &input);
  return status.ok() ? CheckScalar(*input, name, error) : status;
}

// Copies the op's input `name`, a scalar of type T, into `value`.
template <typename T>
absl::Status ScalarInput(tensorflow::OpKernelContext* ctx,
                         absl::string_view name, T* value,
                         ScalarError error = ScalarError::kOurs) {
  absl::Status status = CheckScalarInput(ctx, name, error);
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
