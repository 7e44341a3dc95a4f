#include "tf_syncrep/cc/kernels/adam_async_op.h"

#include "tf_syncrep/cc/kernels/update_checks.h"
#include "tf_syncrep/cc/tf/scalar_input.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelContext;

}  // namespace

absl::Status CheckAdamAsyncShapes(OpKernelContext* ctx,
                                  const LockedVariables& variables) {
  for (const AdamAsyncInput slot : {kM, kV}) {
    TF_RETURN_IF_ERROR(CheckSameShapeAsVar(kAdamAsyncInputNames[slot],
                                           variables.tensor(slot).shape(),
                                           variables.tensor(kVar).shape()));
  }
  for (const AdamAsyncInput power : {kBeta1Power, kBeta2Power}) {
    TF_RETURN_IF_ERROR(CheckOneElement(kAdamAsyncInputNames[power],
                                       variables.tensor(power).shape()));
  }
  for (const AdamAsyncInput scalar : {kLr, kBeta1, kBeta2, kEpsilon}) {
    TF_RETURN_IF_ERROR(
        CheckScalar(ctx->input(scalar), kAdamAsyncInputNames[scalar]));
  }
  return absl::OkStatus();
}

void ForwardRefToOutput(OpKernelContext* ctx) {
  if (ctx->input_dtype(kVar) != tensorflow::DT_RESOURCE) {
    ctx->forward_ref_input_to_ref_output(kVar, 0);
  }
}

}  // namespace tf_syncrep
