// Checks of the inputs of kernels that update a variable and its slots.

#ifndef TF_SYNCREP_CC_KERNELS_UPDATE_CHECKS_H_
#define TF_SYNCREP_CC_KERNELS_UPDATE_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"

namespace tf_syncrep {

// Returns InvalidArgument unless the input `name`, of this shape, has var's
// shape.
absl::Status CheckSameShapeAsVar(absl::string_view name,
                                 const tensorflow::TensorShape& shape,
                                 const tensorflow::TensorShape& var_shape);

// Returns InvalidArgument unless the variable `name`, of this shape, holds one
// number.
absl::Status CheckOneElement(absl::string_view name,
                             const tensorflow::TensorShape& shape);

// Returns InvalidArgument unless the shapes of var and of a sparse gradient
// fit. Does not read the indices.
absl::Status CheckSparseShapes(const tensorflow::Tensor& grad,
                               const tensorflow::Tensor& indices,
                               const tensorflow::TensorShape& var_shape);

// Returns the error for indices[position] = index, which is not a row of var.
absl::Status IndexOutOfRange(int64_t position, int64_t index, int64_t num_rows);

// Copies the indices, sorted, into `rows` and checks the copies: inputs may be
// ref variables, which others can change after the check.
absl::Status GroupRows(tensorflow::OpKernelContext* ctx,
                       const tensorflow::Tensor& indices, int64_t num_rows,
                       RowGroups::BadRows bad_rows, RowGroups* rows);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_UPDATE_CHECKS_H_
