// A step of AdamAsync on the CPU: its powers and its hyper-parameters.

#ifndef TF_SYNCREP_CC_KERNELS_ADAM_ASYNC_STEP_H_
#define TF_SYNCREP_CC_KERNELS_ADAM_ASYNC_STEP_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_syncrep/cc/lib/adam_async.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

template <typename Slot>
Slot Scalar(tensorflow::OpKernelContext* ctx, AdamAsyncInput input) {
  return *Data<const Slot>(ctx->input(input));
}

// Prepares the powers for TakeStep().
inline absl::Status PreparePowers(tensorflow::OpKernelContext* ctx,
                                  LockedVariables& variables) {
  TF_RETURN_IF_ERROR(variables.PrepareToWrite(ctx, kBeta1Power));
  return variables.PrepareToWrite(ctx, kBeta2Power);
}

// Returns the Adam update for the present powers, and advances them.
template <typename Slot>
AdamAsyncUpdate<Slot> TakeStep(tensorflow::OpKernelContext* ctx,
                               AdamAsyncFormula formula,
                               LockedVariables& variables) {
  Slot& beta1_power = *variables.data<Slot>(kBeta1Power);
  Slot& beta2_power = *variables.data<Slot>(kBeta2Power);
  const AdamAsyncUpdate<Slot> update = {
      formula,
      AdamAsyncStepSize(Scalar<Slot>(ctx, kLr), beta1_power, beta2_power),
      Scalar<Slot>(ctx, kBeta1), Scalar<Slot>(ctx, kBeta2),
      Scalar<Slot>(ctx, kEpsilon)};
  beta1_power *= update.beta1;
  beta2_power *= update.beta2;
  return update;
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_ADAM_ASYNC_STEP_H_
