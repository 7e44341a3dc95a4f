#include "tf_syncrep/cc/kernels/update_checks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;

}  // namespace

absl::Status CheckSameShapeAsVar(absl::string_view name,
                                 const TensorShape& shape,
                                 const TensorShape& var_shape) {
  if (shape != var_shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must have the shape of var, ", var_shape.DebugString(),
        ", but has shape ", shape.DebugString()));
  }
  return absl::OkStatus();
}

absl::Status CheckOneElement(absl::string_view name, const TensorShape& shape) {
  if (shape.num_elements() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must have exactly one element, but has shape ",
                     shape.DebugString()));
  }
  return absl::OkStatus();
}

absl::Status CheckSparseShapes(const Tensor& grad, const Tensor& indices,
                               const TensorShape& var_shape) {
  if (var_shape.dims() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("var must have at least rank 1 for a sparse gradient, "
                     "but has shape ",
                     var_shape.DebugString()));
  }
  if (!TensorShapeUtils::IsVector(indices.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("indices must be a vector, but has shape ",
                     indices.shape().DebugString()));
  }
  TensorShape expected = var_shape;
  // A variable without rows may have rows of any size.
  TF_RETURN_IF_ERROR(expected.SetDimWithStatus(0, indices.NumElements()));
  if (grad.shape() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("grad must have shape ", expected.DebugString(), " for ",
                     indices.NumElements(), " indices and a var of shape ",
                     var_shape.DebugString(), ", but has shape ",
                     grad.shape().DebugString()));
  }
  return absl::OkStatus();
}

absl::Status IndexOutOfRange(int64_t position, int64_t index,
                             int64_t num_rows) {
  return absl::InvalidArgumentError(absl::StrCat(
      "indices[", position, "] = ", index,
      " is out of range: it must be in [0, ", num_rows, "), the rows of var"));
}

absl::Status GroupRows(OpKernelContext* ctx, const Tensor& indices,
                       int64_t num_rows, RowGroups::BadRows bad_rows,
                       RowGroups* rows) {
  const int64_t size = indices.NumElements();
  for (const auto& [name, num] :
       {std::pair<const char*, int64_t>("var", num_rows), {"indices", size}}) {
    if (num > RowGroups::kMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must have at most ", RowGroups::kMax,
                       " rows for a sparse update, but has ", num));
    }
  }
  DeviceSharder sharder(ctx);
  BadRow bad_row;
  const auto find = [&](const auto* data) {
    return rows->Find(data, size, num_rows, bad_rows, sharder, &bad_row);
  };
  switch (indices.dtype() == tensorflow::DT_INT32
              ? find(Data<const int32_t>(indices))
              : find(Data<const int64_t>(indices))) {
    case RowGroups::Status::kBadRow:
      return IndexOutOfRange(bad_row.position, bad_row.row, num_rows);
    case RowGroups::Status::kOutOfMemory:
      return OutOfMemory(absl::StrCat("the order of ", size, " indices"),
                         2 * size * sizeof(RowOccurrence<uint32_t>));
    case RowGroups::Status::kOk:
      break;
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep
