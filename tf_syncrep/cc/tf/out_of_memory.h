// The error of an op that got no memory, and allocations that return it.

#ifndef TF_SYNCREP_CC_TF_OUT_OF_MEMORY_H_
#define TF_SYNCREP_CC_TF_OUT_OF_MEMORY_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_syncrep {

// Returns ResourceExhausted: there is no memory for `what`, which takes about
// `bytes`.
inline absl::Status OutOfMemory(absl::string_view what, size_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "There is no memory for ", what, ", about ", bytes, " bytes"));
}

// Allocates a tensor, of a type that is copied byte by byte or of strings.
inline absl::Status NewTensor(absl::string_view what,
                              tensorflow::DataType dtype,
                              const tensorflow::TensorShape& shape,
                              tensorflow::Tensor* made) {
  *made = tensorflow::Tensor(dtype, shape);
  if (made->IsInitialized()) {
    return absl::OkStatus();
  }
  return OutOfMemory(what,
                     shape.num_elements() * tensorflow::DataTypeSize(dtype));
}

// The same, with the contents of another tensor.
inline absl::Status CopyTensor(absl::string_view what,
                               const tensorflow::Tensor& from,
                               tensorflow::Tensor* made) {
  TF_RETURN_IF_ERROR(NewTensor(what, from.dtype(), from.shape(), made));
  tensorflow::tensor::DeepCopy(from, made);
  return absl::OkStatus();
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_OUT_OF_MEMORY_H_
