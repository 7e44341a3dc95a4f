// The scalars among the inputs and outputs of an op, and checks of ranks.

#ifndef TF_SYNCREP_CC_TF_SCALARS_H_
#define TF_SYNCREP_CC_TF_SCALARS_H_

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

// Returns InvalidArgument unless `input`, of this name, has rank 1 or 2.
inline absl::Status CheckVector(const tensorflow::Tensor& input,
                                absl::string_view name) {
  return input.dims() == 1 ? absl::OkStatus()
                           : absl::InvalidArgumentError(absl::StrCat(
                                 name, " must be a vector, but has shape ",
                                 input.shape().DebugString()));
}
inline absl::Status CheckMatrix(const tensorflow::Tensor& input,
                                absl::string_view name) {
  return input.dims() == 2 ? absl::OkStatus()
                           : absl::InvalidArgumentError(absl::StrCat(
                                 name, " must be a matrix, but has shape ",
                                 input.shape().DebugString()));
}

// Copies the op's input `name`, a scalar of type T, into `value`.
template <typename T>
absl::Status ScalarInput(tensorflow::OpKernelContext* ctx,
                         absl::string_view name, T* value,
                         ScalarError error = ScalarError::kOurs) {
  const tensorflow::Tensor* input;
  TF_RETURN_IF_ERROR(ctx->input(name, &input));
  TF_RETURN_IF_ERROR(CheckScalar(*input, name, error));
  *value = *Data<const T>(*input);
  return absl::OkStatus();
}

// Makes the op's output `index` a scalar of type T.
template <typename T>
absl::Status SetScalarOutput(tensorflow::OpKernelContext* ctx, int index,
                             const T& value) {
  tensorflow::Tensor* output;
  TF_RETURN_IF_ERROR(
      ctx->allocate_output(index, tensorflow::TensorShape({}), &output));
  output->scalar<T>()() = value;
  return absl::OkStatus();
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_SCALARS_H_
