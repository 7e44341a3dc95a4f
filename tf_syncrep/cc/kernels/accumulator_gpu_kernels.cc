// Kernels of accumulators whose gradients are in the GPU's memory.
//
// All of an accumulator's work is put into the one stream in which the device's
// ops compute, under the accumulator's lock where the order matters. So
// gradients add up in their order of arrival, and a result is complete for the
// ops that use it next. The bookkeeping is on the host, as for sums in the
// host's memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_apply_op.h"
#include "tf_syncrep/cc/kernels/accumulator_op.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/kernels/accumulator_take_op.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/cuda/adam_async.h"
#include "tf_syncrep/cc/lib/cuda/gpu_device.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/gpu_context.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalar_output.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DataTypeToEnum;
using tensorflow::DT_INT64;
using tensorflow::DT_INT8;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using PushResult = Accumulator::PushResult;

// Makes accumulators with sums in the GPU's memory.
class GpuAccumulatorMaker {
 public:
  absl::Status Init(OpKernelContext* ctx) { return GpuQueueOf(ctx, &queue_); }

  AccumulatorResource* Make(const AccumulatorSpec& spec) const {
    // TensorFlow's allocator on GPUs reuses memory by itself.
    return new AccumulatorResource(spec, SumMaker(spec),
                                   AccumulatorResource::ResultMemory::kNew);
  }

 private:
  AccumulatorResource::SumMaker SumMaker(const AccumulatorSpec& spec) const {
    return VisitAccumulatorType(
        spec.dtype, [&](auto type) -> AccumulatorResource::SumMaker {
          using T = decltype(type);
          if (!spec.is_sparse) {
            return [queue = queue_] {
              return std::make_unique<GpuDenseGradientSum<T>>(queue);
            };
          }
          const int64_t limit =
              spec.shape.dims() > 0 ? spec.shape.dim_size(0) : -1;
          return [queue = queue_, limit] {
            return std::make_unique<GpuSparseGradientSum<T>>(queue, limit);
          };
        });
  }

  GpuQueue queue_;
};

// Allocates a tensor of at least `bytes` bytes; no owner when there is none.
OwnedBuffer AllocateOnGpu(OpKernelContext* ctx, size_t bytes) {
  const auto owner = std::make_shared<Tensor>();
  // An empty tensor has no memory, and its pointer would be null.
  const auto size = static_cast<int64_t>(std::max<size_t>(bytes, 1));
  absl::Status status =
      ctx->allocate_temp(DT_INT8, TensorShape({size}), owner.get());
  if (!status.ok()) {
    return {};
  }
  return {owner->data(), owner};
}

// Copies the indices and checks them, and pushes the gradient when they are
// known to be good. Nothing has changed before that.
template <typename T>
class AccumulatorApplySparseGpuOp final : public AsyncOpKernel {
 public:
  using LibT = LibType<T>;

  explicit AccumulatorApplySparseGpuOp(OpKernelConstruction* ctx)
      : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_known_shape", &has_known_shape_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    AccumulatorPtr lookup;
    int64_t step = 0;
    int64_t limit = -1;
    OP_REQUIRES_OK_ASYNC(ctx,
                         LookupAccumulator(ctx, /*is_sparse=*/true,
                                           DataTypeToEnum<T>::value, &lookup),
                         done);
    OP_REQUIRES_OK_ASYNC(ctx, LocalStepInput(ctx, &step), done);
    OP_REQUIRES_OK_ASYNC(ctx,
                         CheckSparseGradient(ctx, lookup->spec().shape,
                                             has_known_shape_, &limit),
                         done);
    const std::shared_ptr<AccumulatorResource> accumulator =
        ShareAccumulator(std::move(lookup));
    if (accumulator->accumulator().DropIfStale(step)) {
      OP_REQUIRES_OK_ASYNC(ctx, SetScalarOutput(ctx, 0, false), done);
      done();
      return;
    }
    const Tensor& indices = ctx->input(kGradientIndices);
    const int64_t num_rows = indices.NumElements();
    if (num_rows == 0) {
      OP_REQUIRES_OK_ASYNC(ctx, Push(ctx, *accumulator, step, {}), done);
      done();
      return;
    }
    const OwnedBuffer rows =
        AllocateOnGpu(ctx, static_cast<size_t>(num_rows) * sizeof(int64_t));
    OP_REQUIRES_ASYNC(ctx, rows.owner != nullptr,
                      OutOfMemory("the indices of a gradient",
                                  indices.NumElements() * sizeof(int64_t)),
                      done);
    Tensor bad_index;
    OP_REQUIRES_OK_ASYNC(
        ctx, ctx->allocate_temp(DT_INT64, TensorShape({2}), &bad_index), done);
    OP_REQUIRES_OK_ASYNC(
        ctx,
        LaunchStatus(CopyRowsOnGpu(
            indices.data(), indices.dtype() == DT_INT64, num_rows, limit,
            static_cast<int64_t*>(rows.data),
            static_cast<GpuBadIndex*>(bad_index.data()), GpuStreamOf(ctx))),
        done);
    CopyToHost(
        ctx, bad_index,
        [ctx, done, accumulator, step, limit, rows](const absl::Status& status,
                                                    const Tensor& copy) {
          OP_REQUIRES_OK_ASYNC(ctx, status, done);
          const auto* const found = Data<const int64_t>(copy);
          OP_REQUIRES_ASYNC(ctx, found[0] < 0,
                            BadGradientIndex(found[0], found[1], limit), done);
          OP_REQUIRES_OK_ASYNC(ctx, Push(ctx, *accumulator, step, rows), done);
          done();
        });
  }

 private:
  static_assert(sizeof(GpuBadIndex) == 2 * sizeof(int64_t));

  static absl::Status Push(OpKernelContext* ctx,
                           AccumulatorResource& accumulator, int64_t step,
                           const OwnedBuffer& rows) {
    const TensorShape shape = ctx->input(kGradientValues).shape();
    const std::vector<int64_t> row_dims = RowDims(shape);
    const int64_t row_size = RowSize(shape);
    const OwnedBuffer values = GradientInput(ctx, kGradientValues);
    DeviceSharder sharder(ctx);
    std::vector<int64_t> held_dims;
    absl::Status status;
    const PushResult result = accumulator.accumulator().Push(
        step, row_dims,
        [&](GradientSum& sum, bool /*others_wait*/) {
          const bool is_added =
              static_cast<GpuSparseGradientSum<LibT>&>(sum).Add(
                  rows, shape.dim_size(0), row_size, values,
                  [ctx](size_t bytes) { return AllocateOnGpu(ctx, bytes); });
          status = SumStatus(sum);
          return is_added;
        },
        sharder, &held_dims);
    if (result == PushResult::kShapeMismatch) {
      return RowShapeMismatch(held_dims, row_dims);
    }
    if (result == PushResult::kOutOfMemory) {
      return OutOfMemory("the rows of a gradient",
                         ctx->input(kGradientValues).TotalBytes());
    }
    TF_RETURN_IF_ERROR(status);
    return SetScalarOutput(ctx, 0, result == PushResult::kAccepted);
  }

  bool has_known_shape_;
};

// Sets the outputs of the sparse ops: indices, values and shape. The number of
// rows has to be read back before memory for them can be allocated.
template <typename T>
struct GpuSparseOutput {
  static constexpr bool kIsSparse = true;

  static void Set(OpKernelContext* ctx,
                  const std::shared_ptr<AccumulatorResource>& accumulator,
                  TakenGradients taken, const OutputsDone& done) {
    const auto shared = std::make_shared<TakenGradients>(std::move(taken));
    DeviceSharder sharder(ctx);
    auto& sum =
        static_cast<GpuSparseGradientSum<LibT>&>(shared->Merged(sharder));
    if (sum.num_held_rows() == 0) {
      done(Write(ctx, *accumulator, *shared, 0));
      return;
    }
    Tensor count;
    absl::Status status =
        ctx->allocate_temp(DT_INT64, TensorShape({1}), &count);
    if (status.ok() && !sum.Sort(Data<int64_t>(count), [ctx](size_t n) {
          return AllocateOnGpu(ctx, n);
        })) {
      status = OutOfMemory("the order of the gradients' rows",
                           sum.num_held_rows() * sizeof(int64_t));
    }
    status.Update(SumStatus(sum));
    if (!status.ok()) {
      done(status);
      return;
    }
    CopyToHost(ctx, count,
               [ctx, accumulator, shared, done](const absl::Status& copied,
                                                const Tensor& copy) {
                 absl::Status status = copied;
                 if (status.ok()) {
                   status = Write(ctx, *accumulator, *shared,
                                  *Data<const int64_t>(copy));
                 }
                 // This frees the sums' memory for the gradients that follow.
                 shared->sums.clear();
                 done(status);
               });
  }

 private:
  using LibT = LibType<T>;

  static absl::Status Write(OpKernelContext* ctx,
                            AccumulatorResource& accumulator,
                            TakenGradients& taken, int64_t num_rows) {
    TensorShape shape({num_rows});
    for (const int64_t dim : taken.shape) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(dim));
    }
    Tensor* rows;
    Tensor* values;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({num_rows}), &rows));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, shape, &values));
    auto& sum = static_cast<GpuSparseGradientSum<LibT>&>(*taken.sums[0]);
    sum.WriteResult(accumulator.spec().reduction, taken.num_gradients, num_rows,
                    Data<int64_t>(*rows), Data<LibT>(*values));
    TF_RETURN_IF_ERROR(SumStatus(sum));
    return SetShapeOutput(ctx, accumulator, taken.shape);
  }
};

// Takes the gradients of one round, all of which have arrived.
template <typename T>
class AccumulatorTakeRoundSparseGpuOp final : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    AccumulatorPtr lookup;
    OP_REQUIRES_OK_ASYNC(ctx,
                         LookupAccumulator(ctx, /*is_sparse=*/true,
                                           DataTypeToEnum<T>::value, &lookup),
                         done);
    TakenGradients taken;
    OP_REQUIRES_OK_ASYNC(ctx, TakeRound(ctx, *lookup, &taken), done);
    GpuSparseOutput<T>::Set(ctx, ShareAccumulator(std::move(lookup)),
                            std::move(taken),
                            [ctx, done](const absl::Status& status) {
                              OP_REQUIRES_OK_ASYNC(ctx, status, done);
                              done();
                            });
  }
};

// Handles, steps and counts are on the host.
REGISTER_KERNEL_BUILDER(
    Name("Syncrep>DenseAccumulator")
        .Device(tensorflow::DEVICE_GPU)
        .HostMemory("handle"),
    AccumulatorOp</*kIsSparse=*/false, GpuAccumulatorMaker>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>SparseAccumulator")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle"),
                        AccumulatorOp</*kIsSparse=*/true, GpuAccumulatorMaker>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorSetGlobalStep")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("new_global_step"),
                        AccumulatorSetGlobalStepOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorNumAccumulated")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("num_accumulated"),
                        AccumulatorNumAccumulatedOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorStats")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("step")
                            .HostMemory("held")
                            .HostMemory("pushed")
                            .HostMemory("accepted")
                            .HostMemory("stale")
                            .HostMemory("voided")
                            .HostMemory("taken")
                            .HostMemory("takes")
                            .HostMemory("bytes"),
                        AccumulatorStatsOp);

#define TF_SYNCREP_REGISTER(T)                                       \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorApplyDense")      \
                              .Device(tensorflow::DEVICE_GPU)        \
                              .TypeConstraint<T>("dtype")            \
                              .HostMemory("handle")                  \
                              .HostMemory("local_step")              \
                              .HostMemory("accepted"),               \
                          AccumulatorApplyDenseOp<T>);               \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeDense")       \
                              .Device(tensorflow::DEVICE_GPU)        \
                              .TypeConstraint<T>("dtype")            \
                              .HostMemory("handle")                  \
                              .HostMemory("num_required"),           \
                          AccumulatorTakeOp<T, DenseOutput>);        \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeRoundDense")  \
                              .Device(tensorflow::DEVICE_GPU)        \
                              .TypeConstraint<T>("dtype")            \
                              .HostMemory("handle")                  \
                              .HostMemory("round")                   \
                              .HostMemory("num_gradients"),          \
                          AccumulatorTakeRoundOp<T, DenseOutput>);   \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorApplySparse")     \
                              .Device(tensorflow::DEVICE_GPU)        \
                              .TypeConstraint<T>("dtype")            \
                              .HostMemory("handle")                  \
                              .HostMemory("local_step")              \
                              .HostMemory("gradient_shape")          \
                              .HostMemory("accepted"),               \
                          AccumulatorApplySparseGpuOp<T>);           \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeSparse")      \
                              .Device(tensorflow::DEVICE_GPU)        \
                              .TypeConstraint<T>("dtype")            \
                              .HostMemory("handle")                  \
                              .HostMemory("num_required")            \
                              .HostMemory("shape"),                  \
                          AccumulatorTakeOp<T, GpuSparseOutput>);    \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeRoundSparse") \
                              .Device(tensorflow::DEVICE_GPU)        \
                              .TypeConstraint<T>("dtype")            \
                              .HostMemory("handle")                  \
                              .HostMemory("round")                   \
                              .HostMemory("num_gradients")           \
                              .HostMemory("shape"),                  \
                          AccumulatorTakeRoundSparseGpuOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
