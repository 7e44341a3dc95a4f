#include "tf_syncrep/cc/kernels/adam_async_op.h"

#include "tf_syncrep/cc/kernels/update_checks.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::TensorShape;

}  // namespace

absl::Status CheckHyperParameters(OpKernelContext* ctx) {
  for (const AdamAsyncInput scalar : {kLr, kBeta1, kBeta2, kEpsilon}) {
    TF_RETURN_IF_ERROR(CheckScalarInput(ctx, kAdamAsyncInputNames[scalar]));
  }
  return absl::OkStatus();
}

absl::Status CheckSlotShapes(const LockedVariables& variables) {
  for (const AdamAsyncInput slot : {kM, kV}) {
    TF_RETURN_IF_ERROR(CheckSameShapeAsVar(kAdamAsyncInputNames[slot],
                                           variables.tensor(slot).shape(),
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

void ForwardRefToOutput(OpKernelContext* ctx) {
  if (ctx->input_dtype(kVar) != tensorflow::DT_RESOURCE) {
    ctx->forward_ref_input_to_ref_output(kVar, 0);
  }
}

}  // namespace tf_syncrep
