#include "tf_syncrep/cc/kernels/adam_async_op.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;

}  // namespace

absl::Status CheckSameShapeAsVar(AdamAsyncInput input, const TensorShape& shape,
                                 const TensorShape& var_shape) {
  if (shape != var_shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        kAdamAsyncInputNames[input], " must have the shape of var, ",
        var_shape.DebugString(), ", but has shape ", shape.DebugString()));
  }
  return absl::OkStatus();
}

absl::Status CheckHyperParameters(OpKernelContext* ctx) {
  for (const AdamAsyncInput scalar : {kLr, kBeta1, kBeta2, kEpsilon}) {
    TF_RETURN_IF_ERROR(CheckScalarInput(ctx, kAdamAsyncInputNames[scalar]));
  }
  return absl::OkStatus();
}

absl::Status CheckSlotShapes(const LockedVariables& variables) {
  for (const AdamAsyncInput slot : {kM, kV}) {
    TF_RETURN_IF_ERROR(CheckSameShapeAsVar(slot, variables.tensor(slot).shape(),
                                           variables.tensor(kVar).shape()));
  }
  for (const AdamAsyncInput power : {kBeta1Power, kBeta2Power}) {
    const TensorShape& shape = variables.tensor(power).shape();
    if (shape.num_elements() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(kAdamAsyncInputNames[power],
                       " must have exactly one element, but has shape ",
                       shape.DebugString()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSparseShapes(OpKernelContext* ctx,
                               const TensorShape& var_shape) {
  if (var_shape.dims() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("var must have at least rank 1 for a sparse gradient, "
                     "but has shape ",
                     var_shape.DebugString()));
  }
  const TensorShape& indices_shape = ctx->input(kIndices).shape();
  if (!TensorShapeUtils::IsVector(indices_shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat("indices must be a vector, but has shape ",
                     indices_shape.DebugString()));
  }
  TensorShape expected = var_shape;
  expected.set_dim(0, indices_shape.num_elements());
  const TensorShape& grad_shape = ctx->input(kGrad).shape();
  if (grad_shape != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "grad must have shape ", expected.DebugString(), " for ",
        indices_shape.num_elements(), " indices and a var of shape ",
        var_shape.DebugString(), ", but has shape ", grad_shape.DebugString()));
  }
  return absl::OkStatus();
}

absl::Status IndexOutOfRange(int64_t position, int64_t index,
                             int64_t num_rows) {
  return absl::InvalidArgumentError(absl::StrCat(
      "indices[", position, "] = ", index,
      " is out of range: it must be in [0, ", num_rows, "), the rows of var"));
}

void ForwardRefToOutput(OpKernelContext* ctx) {
  if (ctx->input_dtype(kVar) != tensorflow::DT_RESOURCE) {
    ctx->forward_ref_input_to_ref_output(kVar, 0);
  }
}

}  // namespace tf_syncrep
