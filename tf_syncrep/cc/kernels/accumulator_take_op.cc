#include "tf_syncrep/cc/kernels/accumulator_take_op.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalar_input.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status OutOfMemoryForResult(int64_t num_rows,
                                  const std::vector<int64_t>& row_shape,
                                  size_t element_bytes) {
  // If there are no rows, the number of elements of a row may be too large for
  // an integer.
  double bytes =
      static_cast<double>(num_rows) * static_cast<double>(element_bytes);
  for (const int64_t dim : row_shape) {
    bytes *= static_cast<double>(dim);
  }
  return OutOfMemory("the reduced gradient",
                     static_cast<size_t>(std::min(bytes, 9e18)));
}

absl::Status CheckMode(const AccumulatorResource& accumulator,
                       AccumulatorMode mode) {
  if (accumulator.spec().mode == mode) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("handle must be of an accumulator with mode=",
                   mode == AccumulatorMode::kStep ? "STEP" : "ROUND",
                   ", but is of one with ", accumulator.spec().DebugString()));
}

absl::Status NumRequiredInput(OpKernelContext* ctx, int64_t* num_required) {
  int32_t received = 0;
  TF_RETURN_IF_ERROR(
      ScalarInput(ctx, "num_required", &received, ScalarError::kTensorFlows));
  *num_required = received;
  if (*num_required <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Argument num_required must be positive, but was ", *num_required));
  }
  return absl::OkStatus();
}

absl::Status TakeRound(
    OpKernelContext* ctx, AccumulatorResource& accumulator,
    TakenGradients* taken,
    const std::function<absl::Status(const std::vector<int64_t>&)>& prepare) {
  int64_t round = 0;
  int64_t num_gradients = 0;
  TF_RETURN_IF_ERROR(CheckMode(accumulator, AccumulatorMode::kRound));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "round", &round));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "num_gradients", &num_gradients));
  if (num_gradients <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_gradients must be positive, but is ", num_gradients));
  }
  int64_t held_round = 0;
  int64_t num_held = 0;
  absl::Status status;
  const auto is_prepared = [&](const std::vector<int64_t>& shape) {
    status = prepare == nullptr ? absl::OkStatus() : prepare(shape);
    return status.ok();
  };
  if (!accumulator.accumulator().TakeRound(
          round, num_gradients, taken, &held_round, &num_held, is_prepared)) {
    TF_RETURN_IF_ERROR(status);
    return absl::FailedPreconditionError(absl::StrCat(
        "The accumulator must hold ", num_gradients, " gradients of round ",
        round, ", but holds ", num_held, " of round ", held_round));
  }
  return absl::OkStatus();
}

absl::Status SetShapeOutput(OpKernelContext* ctx,
                            const AccumulatorResource& accumulator,
                            const std::vector<int64_t>& row_dims) {
  const int64_t rank = static_cast<int64_t>(row_dims.size()) + 1;
  Tensor* output;
  TF_RETURN_IF_ERROR(
      ctx->allocate_output("shape", TensorShape({rank}), &output));
  auto shape = output->vec<int64_t>();
  const auto& spec = accumulator.spec();
  shape(0) = spec.shape.dims() > 0 ? spec.shape.dim_size(0) : -1;
  for (int64_t i = 1; i < rank; ++i) {
    shape(i) = row_dims[i - 1];
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep
