// GPU kernels of the AdamAsync ops: check, lock, launch cc/lib/cuda/adam_async.
//
// Hyper-parameters, powers and indices are read on the GPU. Locks are held
// while kernels are put into the stream; from then on the stream keeps the
// kernels apart.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/adam_async_op.h"
#include "tf_syncrep/cc/kernels/update_checks.h"
#include "tf_syncrep/cc/lib/cuda/adam_async.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/tf/gpu_context.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DT_INT64;
using tensorflow::DT_INT8;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using Access = LockedVariables::Access;

// The arguments of both ops' launches.
template <typename LibT>
GpuAdamAsync<LibT> Arguments(OpKernelContext* ctx, AdamAsyncFormula formula,
                             LibT* var, LockedVariables& variables) {
  using Slot = SlotType<LibT>;
  const auto scalar = [ctx](AdamAsyncInput input) {
    return Data<const Slot>(ctx->input(input));
  };
  return {formula,
          var,
          variables.data<Slot>(kM),
          variables.data<Slot>(kV),
          variables.data<Slot>(kBeta1Power),
          variables.data<Slot>(kBeta2Power),
          scalar(kLr),
          scalar(kBeta1),
          scalar(kBeta2),
          scalar(kEpsilon),
          /*rmsprop_momentum=*/-1.0f};
}

template <typename T>
class ApplyAdamAsyncGpuOp final : public AdamAsyncOpBase<T, OpKernel> {
 public:
  using Base = AdamAsyncOpBase<T, OpKernel>;
  using Base::Base;

  void Compute(OpKernelContext* ctx) override {
    {
      LockedVariables variables;
      OP_REQUIRES_OK(ctx,
                     this->LockAndCheck(ctx, Access::kExclusive, &variables));
      OP_REQUIRES_OK(ctx, CheckSameShapeAsVar("grad", ctx->input(kGrad).shape(),
                                              variables.tensor(kVar).shape()));
      for (const AdamAsyncInput input :
           {kVar, kM, kV, kBeta1Power, kBeta2Power}) {
        OP_REQUIRES_OK(ctx, variables.PrepareToWrite(ctx, input));
      }
      OP_REQUIRES_OK(ctx, LaunchStatus(ApplyAdamAsyncOnGpu(
                              Arguments(ctx, this->Formula(),
                                        Base::VarData(variables), variables),
                              variables.tensor(kVar).NumElements(),
                              Base::GradData(ctx), GpuStreamOf(ctx))));
    }
    ForwardRefToOutput(ctx);
  }
};

template <typename T>
class SparseApplyAdamAsyncGpuOp final
    : public SparseAdamAsyncOpBase<T, AsyncOpKernel> {
 public:
  using Base = SparseAdamAsyncOpBase<T, AsyncOpKernel>;
  using Base::Base;
  using typename Base::LibT;

  void ComputeAsync(OpKernelContext* ctx,
                    AsyncOpKernel::DoneCallback done) override {
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
    const Access access =
        this->use_locking_ ? Access::kExclusive : Access::kShared;
    LockedVariables variables;
    TF_RETURN_IF_ERROR(this->LockAndCheck(ctx, access, &variables));
    TF_RETURN_IF_ERROR(CheckSparseShapes(ctx->input(kGrad),
                                         ctx->input(kIndices),
                                         variables.tensor(kVar).shape()));
    const Tensor& indices = ctx->input(kIndices);
    const int64_t num_indices = indices.NumElements();
    if (num_indices == 0 && (!this->count_empty_ || this->use_rmsprop_)) {
      return absl::OkStatus();
    }
    if (num_indices > kMaxGpuIndices) {
      return absl::InvalidArgumentError(
          absl::StrCat("indices must have at most ", kMaxGpuIndices,
                       " elements on a GPU, but has ", num_indices));
    }
    if (access == Access::kExclusive) {
      for (const AdamAsyncInput input : {kVar, kM, kV}) {
        TF_RETURN_IF_ERROR(variables.PrepareToWrite(ctx, input));
      }
    }
    for (const AdamAsyncInput power : {kBeta1Power, kBeta2Power}) {
      TF_RETURN_IF_ERROR(variables.PrepareToWrite(ctx, power));
    }
    if (num_indices == 0) {
      // Without indices only the powers change.
      return LaunchStatus(ApplyAdamAsyncOnGpu(
          Arguments(ctx, this->Formula(), Base::VarData(variables), variables),
          /*size=*/0, Base::GradData(ctx), GpuStreamOf(ctx)));
    }
    *num_rows = variables.tensor(kVar).dim_size(0);
    const GpuSparseRows rows = {
        *num_rows, ctx->input(kGrad).NumElements() / num_indices, num_indices,
        indices.data(), indices.dtype() == DT_INT64};
    size_t workspace_bytes = 0;
    TF_RETURN_IF_ERROR(
        LaunchStatus(SparseAdamAsyncWorkspaceBytes(rows, &workspace_bytes)));
    Tensor workspace;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(
        DT_INT8, TensorShape({static_cast<int64_t>(workspace_bytes)}),
        &workspace));
    if (this->validate_indices_) {
      TF_RETURN_IF_ERROR(
          ctx->allocate_temp(DT_INT64, TensorShape({2}), bad_index));
    }
    GpuAdamAsync<LibT> arguments = Arguments(
        ctx, this->use_rmsprop_ ? AdamAsyncFormula::kRmsprop : this->Formula(),
        Base::VarData(variables), variables);
    arguments.rmsprop_momentum = this->rmsprop_momentum_;
    return LaunchStatus(SparseApplyAdamAsyncOnGpu(
        arguments, rows, Base::GradData(ctx), workspace.data(), workspace_bytes,
        this->validate_indices_ ? static_cast<GpuBadIndex*>(bad_index->data())
                                : nullptr,
        GpuStreamOf(ctx)));
  }
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
