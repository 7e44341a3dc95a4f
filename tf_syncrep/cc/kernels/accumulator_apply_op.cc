#include "tf_syncrep/cc/kernels/accumulator_apply_op.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tf_syncrep/cc/tf/scalar_input.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

using tensorflow::AllocatorAttributes;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;

namespace {

absl::Status CheckIndicesAndValues(OpKernelContext* ctx) {
  const TensorShape& indices = ctx->input(kGradientIndices).shape();
  const TensorShape& values = ctx->input(kGradientValues).shape();
  if (!TensorShapeUtils::IsVector(indices)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Input indices should be vector but received shape: ",
                     indices.DebugString()));
  }
  if (values.dims() == 0) {
    return absl::InvalidArgumentError("Values cannot be 0-dimensional.");
  }
  if (values.dim_size(0) != indices.dim_size(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Expected ", indices.dim_size(0),
                     " non-empty input values, got ", values.dim_size(0)));
  }
  return absl::OkStatus();
}

absl::Status CheckGradientShape(OpKernelContext* ctx,
                                const PartialTensorShape& allowed) {
  const Tensor& input = ctx->input(kGradientShape);
  if (!TensorShapeUtils::IsVector(input.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient_shape must be a vector, but has shape ",
                     input.shape().DebugString()));
  }
  if (allowed.dims() > input.NumElements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape mismatch: expected shape rank at least ",
                     allowed.dims(), ", got ", input.NumElements()));
  }
  const auto* const shape = Data<const int64_t>(input);
  for (int i = 0; i < allowed.dims(); ++i) {
    if (allowed.dim_size(i) != -1 && allowed.dim_size(i) != shape[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("Shape mismatch: expected shape dim ", i, " to be ",
                       allowed.dim_size(i), ", got ", shape[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status ValuesDimMismatch(int dim, int64_t expected, int64_t received) {
  return absl::InvalidArgumentError(
      absl::StrCat("Shape mismatch: expected values dim ", dim, " to be ",
                   expected, ", got ", received));
}

absl::Status CheckRowShape(const TensorShape& values,
                           const PartialTensorShape& allowed) {
  if (allowed.dims() > values.dims()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape mismatch: expected values rank at least ",
                     allowed.dims(), ", got ", values.dims()));
  }
  for (int i = 1; i < allowed.dims(); ++i) {
    if (allowed.dim_size(i) != -1 &&
        allowed.dim_size(i) != values.dim_size(i)) {
      return ValuesDimMismatch(i, allowed.dim_size(i), values.dim_size(i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LocalStepInput(OpKernelContext* ctx, int64_t* step) {
  return ScalarInput(ctx, "local_step", step, ScalarError::kTensorFlows);
}

std::vector<int64_t> Dims(const TensorShape& shape) {
  std::vector<int64_t> dims;
  dims.reserve(shape.dims());
  for (int i = 0; i < shape.dims(); ++i) {
    dims.push_back(shape.dim_size(i));
  }
  return dims;
}

OwnedBuffer GradientInput(OpKernelContext* ctx, int index) {
  const Tensor& input = ctx->input(index);
  std::unique_ptr<Tensor> ours = ctx->forward_input(
      index, OpKernelContext::Params::kNoReservation, input.dtype(),
      input.shape(), ctx->input_memory_type(index), AllocatorAttributes());
  if (ours == nullptr || !ours->IsAligned()) {
    return {input.data(), nullptr};
  }
  const std::shared_ptr<Tensor> owner = std::move(ours);
  return {owner->data(), owner};
}

absl::Status DenseShapeMismatch(const std::string& expected,
                                const TensorShape& received) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Shape mismatch: expected ", expected, ", got ", received.DebugString()));
}

absl::Status CheckSparseGradient(OpKernelContext* ctx,
                                 const PartialTensorShape& allowed,
                                 bool has_known_shape, int64_t* limit) {
  TF_RETURN_IF_ERROR(CheckIndicesAndValues(ctx));
  *limit = allowed.dims() > 0 ? allowed.dim_size(0) : -1;
  if (has_known_shape) {
    TF_RETURN_IF_ERROR(CheckGradientShape(ctx, allowed));
    if (*limit < 0 && ctx->input(kGradientShape).NumElements() > 0) {
      *limit = *Data<const int64_t>(ctx->input(kGradientShape));
    }
  }
  return CheckRowShape(ctx->input(kGradientValues).shape(), allowed);
}

absl::Status BadGradientIndex(int64_t position, int64_t index, int64_t limit) {
  if (index < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape mismatch: index of slice ", position,
                     " must not be negative; index is ", index));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "Shape mismatch: index of slice ", position,
      " exceeded limits of shape; index is ", index, " exceeded ", limit));
}

std::vector<int64_t> RowDims(const TensorShape& values) {
  std::vector<int64_t> dims = Dims(values);
  dims.erase(dims.begin());
  return dims;
}

int64_t RowSize(const TensorShape& values) {
  const int64_t num_rows = values.dim_size(0);
  return num_rows == 0 ? 0 : values.num_elements() / num_rows;
}

absl::Status RowShapeMismatch(const std::vector<int64_t>& held,
                              const std::vector<int64_t>& received) {
  if (held.size() != received.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape mismatch: expected values rank ", held.size() + 1,
                     ", got ", received.size() + 1));
  }
  size_t i = 0;
  while (i + 1 < held.size() && held[i] == received[i]) {
    ++i;
  }
  return ValuesDimMismatch(static_cast<int>(i) + 1, held[i], received[i]);
}

}  // namespace tf_syncrep
