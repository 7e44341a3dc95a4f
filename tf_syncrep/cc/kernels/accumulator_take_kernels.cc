// Kernels that take the reduced gradient out of an accumulator.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"
#include "tf_syncrep/cc/tf/buffer_tensor.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/step_cancellation.h"

namespace tf_syncrep {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DataTypeToEnum;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Returns the ResourceExhausted error for a result of `num_rows` rows of this
// shape, with elements of `element_bytes` bytes.
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

// Sets the output "shape" of a sparse gradient. The number of the variable's
// rows is -1 if the accumulator does not know it.
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

template <typename T>
absl::Status SetDenseOutput(OpKernelContext* ctx,
                            AccumulatorResource& accumulator,
                            TakenGradients& taken) {
  DeviceSharder sharder(ctx);
  auto& sum = static_cast<DenseGradientSum<LibType<T>>&>(*taken.sum);
  const int64_t divisor =
      accumulator.spec().reduction == Reduction::kSum ? 1 : taken.num_gradients;
  const OwnedBuffer result = sum.Finish(
      divisor,
      [&](int64_t) {
        return accumulator.Allocate(ctx, DataTypeToEnum<T>::value,
                                    TensorShape(taken.shape));
      },
      sharder);
  TF_RETURN_IF_ERROR(SumStatus(sum));
  if (result.owner == nullptr) {
    return OutOfMemoryForResult(1, taken.shape, sizeof(T));
  }
  // All owners are tensors: see also GradientInput().
  ctx->set_output(0, *static_cast<const Tensor*>(result.owner.get()));
  return absl::OkStatus();
}

template <typename T>
absl::Status SetSparseOutputs(OpKernelContext* ctx,
                              AccumulatorResource& accumulator,
                              TakenGradients& taken) {
  DeviceSharder sharder(ctx);
  auto& sum = static_cast<SparseGradientSum<LibType<T>>&>(*taken.sum);
  SparseResult result;
  const int64_t most_rows = sum.num_held_rows();
  if (!sum.Finish(accumulator.spec().reduction, taken.num_gradients, sharder,
                  &result)) {
    return OutOfMemoryForResult(most_rows, taken.shape, sizeof(T));
  }
  TensorShape shape({result.num_rows});
  for (const int64_t dim : taken.shape) {
    TF_RETURN_IF_ERROR(shape.AddDimWithStatus(dim));
  }
  ctx->set_output(
      0, BufferTensor(tensorflow::DT_INT64, TensorShape({result.num_rows}),
                      std::move(result.rows)));
  ctx->set_output(1, BufferTensor(DataTypeToEnum<T>::value, shape,
                                  std::move(result.values)));
  return SetShapeOutput(ctx, accumulator, taken.shape);
}

// Puts the taken gradients into the op's outputs. It frees the sums' memory for
// the gradients that follow.
template <typename T, bool kIsSparse>
absl::Status SetOutputs(OpKernelContext* ctx, AccumulatorResource& accumulator,
                        TakenGradients taken) {
  if constexpr (kIsSparse) {
    return SetSparseOutputs<T>(ctx, accumulator, taken);
  } else {
    return SetDenseOutput<T>(ctx, accumulator, taken);
  }
}

std::shared_ptr<AccumulatorResource> ShareAccumulator(
    AccumulatorPtr accumulator) {
  return std::shared_ptr<AccumulatorResource>(
      accumulator.release(),
      [](AccumulatorResource* resource) { resource->Unref(); });
}

// Waits until there are enough gradients.
template <typename T, bool kIsSparse>
class AccumulatorTakeOp final : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    AccumulatorPtr lookup;
    int64_t num_required = 0;
    OP_REQUIRES_OK_ASYNC(
        ctx,
        LookupAccumulator(ctx, kIsSparse, DataTypeToEnum<T>::value, &lookup),
        done);
    OP_REQUIRES_OK_ASYNC(ctx, CheckMode(*lookup, AccumulatorMode::kStep), done);
    OP_REQUIRES_OK_ASYNC(ctx, NumRequiredInput(ctx, &num_required), done);
    // The wait keeps the accumulator alive, and the accumulator keeps the wait,
    // until the wait ends: with enough gradients, or by cancellation.
    const std::shared_ptr<AccumulatorResource> accumulator =
        ShareAccumulator(std::move(lookup));
    const auto take_slot = std::make_shared<std::weak_ptr<PendingTake>>();
    const auto cancellation = std::make_shared<StepCancellation>(
        ctx, [accumulator, take_slot](int64_t) {
          if (const auto take = take_slot->lock()) {
            accumulator->accumulator().Cancel(take);
          }
        });
    const auto take = std::make_shared<PendingTake>(
        num_required,
        [ctx, done, accumulator, cancellation](TakenGradients taken) {
          if (!cancellation->Finish() || taken.sum == nullptr) {
            ctx->SetStatus(
                absl::CancelledError("TakeGrad operation was cancelled"));
            done();
            return;
          }
          // This thread may be one that has just pushed a gradient. It must not
          // have to reduce all of them.
          RunDone(ctx, [ctx, done, accumulator,
                        shared = std::make_shared<TakenGradients>(
                            std::move(taken))] {
            const absl::Status status =
                SetOutputs<T, kIsSparse>(ctx, *accumulator, std::move(*shared));
            OP_REQUIRES_OK_ASYNC(ctx, status, done);
            done();
          });
        });
    *take_slot = take;
    OP_REQUIRES_ASYNC(ctx, cancellation->Register(),
                      absl::CancelledError("TakeGrad operation was cancelled"),
                      done);
    // From here on a cancellation ends the take, even if it has not begun.
    cancellation->SetWait(1);
    accumulator->accumulator().Take(take);
  }
};

absl::Status TakeRound(OpKernelContext* ctx, AccumulatorResource& accumulator,
                       TakenGradients* taken) {
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
  if (!accumulator.accumulator().TakeRound(round, num_gradients, taken,
                                           &held_round, &num_held)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "The accumulator must hold ", num_gradients, " gradients of round ",
        round, ", but holds ", num_held, " of round ", held_round));
  }
  return absl::OkStatus();
}

// Takes the gradients of one round, all of which have arrived.
template <typename T, bool kIsSparse>
class AccumulatorTakeRoundOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    OP_REQUIRES_OK(ctx,
                   LookupAccumulator(ctx, kIsSparse, DataTypeToEnum<T>::value,
                                     &accumulator));
    TakenGradients taken;
    OP_REQUIRES_OK(ctx, TakeRound(ctx, *accumulator, &taken));
    OP_REQUIRES_OK(
        ctx, SetOutputs<T, kIsSparse>(ctx, *accumulator, std::move(taken)));
  }
};

#define TF_SYNCREP_REGISTER(T)                                                \
  TF_SYNCREP_REGISTER_CPU_AND_GPU(Name("Syncrep>AccumulatorTakeDense")        \
                                      .TypeConstraint<T>("dtype")             \
                                      .HostMemory("handle")                   \
                                      .HostMemory("num_required"),            \
                                  AccumulatorTakeOp<T, /*kIsSparse=*/false>); \
  TF_SYNCREP_REGISTER_CPU_AND_GPU(                                            \
      Name("Syncrep>AccumulatorTakeRoundDense")                               \
          .TypeConstraint<T>("dtype")                                         \
          .HostMemory("handle")                                               \
          .HostMemory("round")                                                \
          .HostMemory("num_gradients"),                                       \
      AccumulatorTakeRoundOp<T, /*kIsSparse=*/false>);                        \
  TF_SYNCREP_REGISTER_CPU_AND_GPU(Name("Syncrep>AccumulatorTakeSparse")       \
                                      .TypeConstraint<T>("dtype")             \
                                      .HostMemory("handle")                   \
                                      .HostMemory("num_required")             \
                                      .HostMemory("indices")                  \
                                      .HostMemory("values")                   \
                                      .HostMemory("shape"),                   \
                                  AccumulatorTakeOp<T, /*kIsSparse=*/true>);  \
  TF_SYNCREP_REGISTER_CPU_AND_GPU(                                            \
      Name("Syncrep>AccumulatorTakeRoundSparse")                              \
          .TypeConstraint<T>("dtype")                                         \
          .HostMemory("handle")                                               \
          .HostMemory("round")                                                \
          .HostMemory("num_gradients")                                        \
          .HostMemory("indices")                                              \
          .HostMemory("values")                                               \
          .HostMemory("shape"),                                               \
      AccumulatorTakeRoundOp<T, /*kIsSparse=*/true>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
