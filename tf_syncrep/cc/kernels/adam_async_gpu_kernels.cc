// GPU kernels of the AdamAsync ops: check, lock, launch cc/lib/cuda/adam_async.
//
// Hyper-parameters, powers and indices are read on the GPU. Locks are held
// while kernels are put into the stream; from then on the stream keeps the
// kernels apart.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/rule_op.h"
#include "tf_syncrep/cc/lib/cuda/adam_async.h"
#include "tf_syncrep/cc/ops/rule_inputs.h"
#include "tf_syncrep/cc/tf/gpu_context.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::AllocatorAttributes;
using tensorflow::AsyncOpKernel;
using tensorflow::Device;
using tensorflow::DT_INT64;
using tensorflow::DT_INT8;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using Access = LockedVariables::Access;

// Copies `source`, on the GPU, to the host when the stream gets there. Then it
// calls `done` once, usually on another thread. If the copy fails, the tensor
// must not be used.
void CopyToHost(OpKernelContext* ctx, const Tensor& source,
                std::function<void(const absl::Status&, const Tensor&)> done) {
  AllocatorAttributes on_host;
  on_host.set_on_host(true);
  on_host.set_gpu_compatible(true);
  // The copy is kept alive until it is complete.
  const auto copy = std::make_shared<Tensor>();
  const auto kept_source = std::make_shared<Tensor>(source);
  absl::Status status =
      ctx->allocate_temp(source.dtype(), source.shape(), copy.get(), on_host);
  if (!status.ok()) {
    done(status, *copy);
    return;
  }
  ctx->op_device_context()->CopyDeviceTensorToCPU(
      kept_source.get(), "copy_to_host", static_cast<Device*>(ctx->device()),
      copy.get(),
      [copy, kept_source, done = std::move(done)](const absl::Status& status) {
        done(status, *copy);
      });
}

template <typename LibT>
GpuAdamAsync<LibT> Arguments(OpKernelContext* ctx, const RuleOp& op,
                             LockedVariables& variables) {
  using Slot = SlotType<LibT>;
  const auto number = [&](int i) {
    return Data<const Slot>(ctx->input(op.inputs.number(i)));
  };
  return {op.formula,
          variables.data<LibT>(kRuleVar),
          variables.data<Slot>(op.inputs.slot(0)),
          variables.data<Slot>(op.inputs.slot(1)),
          variables.data<Slot>(op.inputs.power(0)),
          variables.data<Slot>(op.inputs.power(1)),
          /*lr=*/number(0),
          /*beta1=*/number(1),
          /*beta2=*/number(2),
          /*epsilon=*/number(3),
          op.rmsprop_momentum};
}

template <typename T>
class ApplyAdamAsyncGpuOp final : public OpKernel {
 public:
  using LibT = LibType<T>;

  explicit ApplyAdamAsyncGpuOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, op_.Find(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    {
      LockedVariables variables;
      OP_REQUIRES_OK(ctx,
                     op_.LockAndCheck(ctx, Access::kExclusive, &variables));
      const Tensor& grad = ctx->input(op_.inputs.grad());
      OP_REQUIRES_OK(ctx,
                     CheckSameShapeAsVar("grad", grad.shape(),
                                         variables.tensor(kRuleVar).shape()));
      OP_REQUIRES_OK(
          ctx, PrepareToWrite(ctx, kRuleVar, op_.inputs.number(0), &variables));
      OP_REQUIRES_OK(
          ctx, LaunchStatus(ApplyAdamAsyncOnGpu(
                   Arguments<LibT>(ctx, op_, variables), grad.NumElements(),
                   Data<const LibT>(grad), GpuStreamOf(ctx))));
    }
    ForwardRefToOutput(ctx);
  }

 private:
  RuleOp op_;
};

template <typename T>
class SparseApplyAdamAsyncGpuOp final : public AsyncOpKernel {
 public:
  using LibT = LibType<T>;

  explicit SparseApplyAdamAsyncGpuOp(OpKernelConstruction* ctx)
      : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, op_.Find(ctx));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    Tensor bad_index;
    int64_t num_rows = 0;
    OP_REQUIRES_OK_ASYNC(ctx, Launch(ctx, &bad_index, &num_rows), done);
    ForwardRefToOutput(ctx);
    if (!bad_index.IsInitialized()) {
      done();
      return;
    }
    // The kernels have decided by themselves whether to write anything. The
    // wait is only for the error message.
    CopyToHost(
        ctx, bad_index,
        [ctx, num_rows, done](const absl::Status& status, const Tensor& copy) {
          OP_REQUIRES_OK_ASYNC(ctx, status, done);
          const auto* const found = Data<const int64_t>(copy);
          OP_REQUIRES_ASYNC(ctx, found[0] < 0,
                            IndexOutOfRange(found[0], found[1], num_rows),
                            done);
          done();
        });
  }

 private:
  static_assert(sizeof(GpuBadIndex) == 2 * sizeof(int64_t));

  // If indices are validated and there are any, `bad_index` becomes a tensor
  // that the stream fills with a GpuBadIndex.
  absl::Status Launch(OpKernelContext* ctx, Tensor* bad_index,
                      int64_t* num_rows) const {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(op_.LockAndCheck(
        ctx, op_.use_locking ? Access::kExclusive : Access::kShared,
        &variables));
    const Tensor& var = variables.tensor(kRuleVar);
    const Tensor& grad = ctx->input(op_.inputs.grad());
    const Tensor& indices = ctx->input(op_.inputs.indices());
    TF_RETURN_IF_ERROR(CheckSparseShapes(grad, indices, var.shape()));
    const int64_t num_indices = indices.NumElements();
    if (num_indices == 0 &&
        (!op_.count_empty || op_.formula == AdamAsyncFormula::kRmsprop)) {
      return absl::OkStatus();
    }
    if (num_indices > kMaxGpuIndices) {
      return absl::InvalidArgumentError(
          absl::StrCat("indices must have at most ", kMaxGpuIndices,
                       " elements on a GPU, but has ", num_indices));
    }
    TF_RETURN_IF_ERROR(
        PrepareToWrite(ctx, op_.use_locking ? kRuleVar : op_.inputs.power(0),
                       op_.inputs.number(0), &variables));
    const auto arguments = Arguments<LibT>(ctx, op_, variables);
    if (num_indices == 0) {
      // Without indices only the powers change.
      return LaunchStatus(ApplyAdamAsyncOnGpu(
          arguments, /*size=*/0, Data<const LibT>(grad), GpuStreamOf(ctx)));
    }
    *num_rows = var.dim_size(0);
    const GpuSparseRows rows = {*num_rows, grad.NumElements() / num_indices,
                                num_indices, indices.data(),
                                indices.dtype() == DT_INT64};
    size_t workspace_bytes = 0;
    TF_RETURN_IF_ERROR(
        LaunchStatus(SparseAdamAsyncWorkspaceBytes(rows, &workspace_bytes)));
    Tensor workspace;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(
        DT_INT8, TensorShape({static_cast<int64_t>(workspace_bytes)}),
        &workspace));
    if (op_.validate_indices) {
      TF_RETURN_IF_ERROR(
          ctx->allocate_temp(DT_INT64, TensorShape({2}), bad_index));
    }
    return LaunchStatus(SparseApplyAdamAsyncOnGpu(
        arguments, rows, Data<const LibT>(grad), workspace.data(),
        workspace_bytes,
        op_.validate_indices ? static_cast<GpuBadIndex*>(bad_index->data())
                             : nullptr,
        GpuStreamOf(ctx)));
  }

  RuleOp op_;
};

// Handles are on the host. All other inputs, indices and hyper-parameters too,
// are where the variables are.
#define TF_SYNCREP_REGISTER(T)                                 \
  REGISTER_KERNEL_BUILDER(Name("ApplyAdamAsync")               \
                              .Device(tensorflow::DEVICE_GPU)  \
                              .TypeConstraint<T>("T"),         \
                          ApplyAdamAsyncGpuOp<T>);             \
  REGISTER_KERNEL_BUILDER(Name("ResourceApplyAdamAsync")       \
                              .Device(tensorflow::DEVICE_GPU)  \
                              .TypeConstraint<T>("T")          \
                              .HostMemory("var")               \
                              .HostMemory("m")                 \
                              .HostMemory("v")                 \
                              .HostMemory("beta1_power")       \
                              .HostMemory("beta2_power"),      \
                          ApplyAdamAsyncGpuOp<T>);             \
  REGISTER_KERNEL_BUILDER(Name("SparseApplyAdamAsync")         \
                              .Device(tensorflow::DEVICE_GPU)  \
                              .TypeConstraint<T>("T"),         \
                          SparseApplyAdamAsyncGpuOp<T>);       \
  REGISTER_KERNEL_BUILDER(Name("ResourceSparseApplyAdamAsync") \
                              .Device(tensorflow::DEVICE_GPU)  \
                              .TypeConstraint<T>("T")          \
                              .HostMemory("var")               \
                              .HostMemory("m")                 \
                              .HostMemory("v")                 \
                              .HostMemory("beta1_power")       \
                              .HostMemory("beta2_power"),      \
                          SparseApplyAdamAsyncGpuOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
