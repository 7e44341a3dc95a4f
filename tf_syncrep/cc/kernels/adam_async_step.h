// A step of AdamAsync on the CPU: its variables' memory, its powers and its
// hyper-parameters.

#ifndef TF_SYNCREP_CC_KERNELS_ADAM_ASYNC_STEP_H_
#define TF_SYNCREP_CC_KERNELS_ADAM_ASYNC_STEP_H_

#include <array>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
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

template <typename T>
const T* DataOrNull(const std::optional<tensorflow::Tensor>& tensor) {
  return tensor.has_value() ? Data<const T>(*tensor) : nullptr;
}

// The old buffers of var, m and v that readers still hold: see
// PrepareToReplace().
using DenseBefore = std::array<std::optional<tensorflow::Tensor>, 3>;

// Makes all of the variables safe to write. A dense step must follow it: if
// there are readers, the variables' own memory has arbitrary contents.
inline absl::Status PrepareDenseStep(tensorflow::OpKernelContext* ctx,
                                     LockedVariables& variables,
                                     DenseBefore* before) {
  TF_RETURN_IF_ERROR(PreparePowers(ctx, variables));
  constexpr std::array<int, 3> kWritten = {kVar, kM, kV};
  return variables.PrepareToReplace(ctx, kWritten, absl::MakeSpan(*before));
}

template <typename T>
AdamAsyncBefore<T> DataBefore(const DenseBefore& before) {
  using Slot = SlotType<T>;
  return {DataOrNull<T>(before[0]), DataOrNull<Slot>(before[1]),
          DataOrNull<Slot>(before[2])};
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_ADAM_ASYNC_STEP_H_
