// Kernels that take the reduced gradient out of an accumulator.

#include <cstdint>
#include <functional>
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
#include "tf_syncrep/cc/lib/huge_pages.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/reusable_tensor.h"
#include "tf_syncrep/cc/tf/scalar_input.h"
#include "tf_syncrep/cc/tf/step_cancellation.h"

namespace tf_syncrep {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DataTypeToEnum;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;

absl::Status OutOfMemory() {
  return absl::ResourceExhaustedError(
      "There is no memory for the reduced gradient");
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

// Outputs of the dense ops: the reduced gradient.
template <typename T>
struct DenseOutput {
  static constexpr bool kIsSparse = false;

  static absl::Status Set(OpKernelContext* ctx,
                          AccumulatorResource& accumulator,
                          TakenGradients& taken) {
    using LibT = LibType<T>;
    DeviceSharder sharder(ctx);
    auto& sum = static_cast<DenseGradientSum<LibT>&>(taken.Merged(sharder));
    const int64_t divisor = accumulator.spec().reduction == Reduction::kSum
                                ? 1
                                : taken.num_gradients;
    ReusableTensor& memory = accumulator.taken_memory();
    const OwnedBuffer result = sum.Finish(
        divisor,
        [&](int64_t) -> OwnedBuffer {
          const auto owner = std::make_shared<Tensor>();
          absl::Status status = memory.Get(
              ctx, DataTypeToEnum<T>::value, TensorShape(taken.shape),
              ReusableTensor::Rows::kExact, owner.get());
          if (!status.ok()) {
            return {};
          }
          return {owner->data(), owner};
        },
        sharder);
    if (result.owner == nullptr) {
      return OutOfMemory();
    }
    // All owners are tensors: see AccumulatorApplyDenseOp too.
    const Tensor& output = *static_cast<const Tensor*>(result.owner.get());
    ctx->set_output(0, output);
    memory.Keep(output);
    return absl::OkStatus();
  }
};

// Outputs of the sparse ops: indices, values, shape.
template <typename T>
struct SparseOutput {
  static constexpr bool kIsSparse = true;

  static absl::Status Set(OpKernelContext* ctx,
                          AccumulatorResource& accumulator,
                          TakenGradients& taken) {
    using LibT = LibType<T>;
    DeviceSharder sharder(ctx);
    auto& sum = static_cast<SparseGradientSum<LibT>&>(taken.Merged(sharder));
    ReusableTensor& memory = accumulator.taken_memory();
    absl::Status status;
    const bool is_done = sum.Finish(
        accumulator.spec().reduction, taken.num_gradients,
        [&](int64_t num_rows, SparseResult<LibT>* result) {
          status = Allocate(ctx, memory, num_rows, taken.shape, result);
          return status.ok();
        },
        sharder);
    TF_RETURN_IF_ERROR(status);
    if (!is_done) {
      return OutOfMemory();
    }
    return SetShape(ctx, accumulator, taken.shape);
  }

 private:
  static absl::Status Allocate(OpKernelContext* ctx, ReusableTensor& memory,
                               int64_t num_rows,
                               const std::vector<int64_t>& row_dims,
                               SparseResult<LibType<T>>* result) {
    Tensor* rows;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({num_rows}), &rows));
    AdviseHugePages(rows->data(), rows->TotalBytes());
    TensorShape shape({num_rows});
    for (const int64_t dim : row_dims) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(dim));
    }
    Tensor values;
    TF_RETURN_IF_ERROR(memory.Get(ctx, DataTypeToEnum<T>::value, shape,
                                  ReusableTensor::Rows::kAtLeast, &values));
    ctx->set_output(
        1, values.dim_size(0) == num_rows ? values : values.Slice(0, num_rows));
    memory.Keep(values);
    result->rows = rows->flat<int64_t>().data();
    result->values =
        reinterpret_cast<LibType<T>*>(values.template flat<T>().data());
    return absl::OkStatus();
  }

  // The number of rows of the variable is -1 where the accumulator was not
  // told.
  static absl::Status SetShape(OpKernelContext* ctx,
                               const AccumulatorResource& accumulator,
                               const std::vector<int64_t>& row_dims) {
    const int64_t rank = static_cast<int64_t>(row_dims.size()) + 1;
    Tensor* output;
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, TensorShape({rank}), &output));
    auto shape = output->vec<int64_t>();
    const auto& spec = accumulator.spec();
    shape(0) = spec.shape.dims() > 0 ? spec.shape.dim_size(0) : -1;
    for (int64_t i = 1; i < rank; ++i) {
      shape(i) = row_dims[i - 1];
    }
    return absl::OkStatus();
  }
};

// Waits until enough gradients are in.
template <typename T, template <typename> class Output>
class AccumulatorTakeOp final : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    AccumulatorPtr lookup;
    int64_t num_required = 0;
    OP_REQUIRES_OK_ASYNC(ctx,
                         LookupAccumulator(ctx, Output<T>::kIsSparse,
                                           DataTypeToEnum<T>::value, &lookup),
                         done);
    OP_REQUIRES_OK_ASYNC(ctx, CheckMode(*lookup, AccumulatorMode::kStep), done);
    OP_REQUIRES_OK_ASYNC(ctx, NumRequired(ctx, &num_required), done);
    // The wait keeps the accumulator alive, and the accumulator the wait, until
    // one of the two ways out is taken: enough gradients, or cancellation.
    const std::shared_ptr<AccumulatorResource> accumulator(
        lookup.release(),
        [](AccumulatorResource* resource) { resource->Unref(); });
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
          if (!cancellation->Finish() || taken.sums.empty()) {
            ctx->SetStatus(
                absl::CancelledError("TakeGrad operation was cancelled"));
            done();
            return;
          }
          // Not on this thread: it may be one that pushed a gradient, and has
          // other things to do than to reduce them all.
          RunDone(
              ctx,
              [ctx, done, accumulator,
               shared = std::make_shared<TakenGradients>(std::move(taken))] {
                const absl::Status status =
                    Output<T>::Set(ctx, *accumulator, *shared);
                // Its memory is then there for the gradients that follow.
                shared->sums.clear();
                OP_REQUIRES_OK_ASYNC(ctx, status, done);
                done();
              });
        });
    *take_slot = take;
    OP_REQUIRES_ASYNC(ctx, cancellation->Register(),
                      absl::CancelledError("TakeGrad operation was cancelled"),
                      done);
    // From here on a cancellation ends the take, also before it has begun.
    cancellation->SetWait(1);
    accumulator->accumulator().Take(take);
  }

 private:
  static absl::Status NumRequired(OpKernelContext* ctx, int64_t* num_required) {
    const Tensor* input;
    TF_RETURN_IF_ERROR(ctx->input("num_required", &input));
    if (!TensorShapeUtils::IsScalar(input->shape())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Argument num_required must be scalar, but had bad shape ",
          input->shape().DebugString()));
    }
    *num_required = input->scalar<int32_t>()();
    if (*num_required <= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Argument num_required must be positive, but was ", *num_required));
    }
    return absl::OkStatus();
  }
};

// Takes the gradients of one round, which are there.
template <typename T, template <typename> class Output>
class AccumulatorTakeRoundOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    int64_t round = 0;
    int64_t num_gradients = 0;
    OP_REQUIRES_OK(ctx,
                   LookupAccumulator(ctx, Output<T>::kIsSparse,
                                     DataTypeToEnum<T>::value, &accumulator));
    OP_REQUIRES_OK(ctx, CheckMode(*accumulator, AccumulatorMode::kRound));
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "round", &round));
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "num_gradients", &num_gradients));
    OP_REQUIRES(ctx, num_gradients > 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "num_gradients must be positive, but is ", num_gradients)));
    TakenGradients taken;
    int64_t held_round = 0;
    int64_t num_held = 0;
    OP_REQUIRES(
        ctx,
        accumulator->accumulator().TakeRound(round, num_gradients, &taken,
                                             &held_round, &num_held),
        absl::FailedPreconditionError(absl::StrCat(
            "The accumulator must hold ", num_gradients, " gradients of round ",
            round, ", but holds ", num_held, " of round ", held_round)));
    OP_REQUIRES_OK(ctx, Output<T>::Set(ctx, *accumulator, taken));
  }
};

#define TF_SYNCREP_REGISTER(T)                                       \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeDense")       \
                              .Device(tensorflow::DEVICE_CPU)        \
                              .TypeConstraint<T>("dtype"),           \
                          AccumulatorTakeOp<T, DenseOutput>);        \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeSparse")      \
                              .Device(tensorflow::DEVICE_CPU)        \
                              .TypeConstraint<T>("dtype"),           \
                          AccumulatorTakeOp<T, SparseOutput>);       \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeRoundDense")  \
                              .Device(tensorflow::DEVICE_CPU)        \
                              .TypeConstraint<T>("dtype"),           \
                          AccumulatorTakeRoundOp<T, DenseOutput>);   \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeRoundSparse") \
                              .Device(tensorflow::DEVICE_CPU)        \
                              .TypeConstraint<T>("dtype"),           \
                          AccumulatorTakeRoundOp<T, SparseOutput>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
