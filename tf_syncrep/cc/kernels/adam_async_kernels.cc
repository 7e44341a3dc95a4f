// CPU kernels of the AdamAsync ops: check, lock, call cc/lib/adam_async.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/adam_async_op.h"
#include "tf_syncrep/cc/kernels/adam_async_step.h"
#include "tf_syncrep/cc/kernels/rounding_op.h"
#include "tf_syncrep/cc/kernels/update_checks.h"
#include "tf_syncrep/cc/lib/adam_async.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::TensorShape;
using Access = LockedVariables::Access;

template <typename T>
class ApplyAdamAsyncOp final : public AdamAsyncOpBase<T, OpKernel> {
 public:
  using Base = AdamAsyncOpBase<T, OpKernel>;
  using Base::Base;
  using typename Base::LibT;
  using typename Base::Slot;

  void Compute(OpKernelContext* ctx) override {
    {
      LockedVariables variables;
      RoundingCount count(this->rounding_);
      OP_REQUIRES_OK(
          ctx, this->LockAndCheck(ctx, Access::kExclusive, &variables, &count));
      OP_REQUIRES_OK(ctx, CheckSameShapeAsVar("grad", ctx->input(kGrad).shape(),
                                              variables.tensor(kVar).shape()));
      OP_REQUIRES_OK(ctx, count.Prepare(ctx, variables));
      for (const AdamAsyncInput input : {kVar, kM, kV}) {
        OP_REQUIRES_OK(ctx, variables.PrepareToWrite(ctx, input));
      }
      OP_REQUIRES_OK(ctx, PreparePowers(ctx, variables));
      const auto update = TakeStep<Slot>(ctx, this->Formula(), variables);
      count.Take(variables);
      DeviceSharder sharder(ctx);
      ApplyAdamAsync<LibT>(update, variables.tensor(kVar).NumElements(),
                           Base::GradData(ctx), Base::VarData(variables),
                           variables.data<Slot>(kM), variables.data<Slot>(kV),
                           sharder, BestCpuLevel(), count.draws());
    }
    ForwardRefToOutput(ctx);
  }
};

template <typename T>
class SparseApplyAdamAsyncOp final : public SparseAdamAsyncOpBase<T, OpKernel> {
 public:
  using Base = SparseAdamAsyncOpBase<T, OpKernel>;
  using Base::Base;
  using typename Base::Slot;

  void Compute(OpKernelContext* ctx) override {
    {
      TensorShape shape;
      RowGroups rows;
      OP_REQUIRES_OK(ctx, FindRows(ctx, &shape, &rows));
      const Access access =
          this->use_locking_ ? Access::kExclusive : Access::kShared;
      LockedVariables variables;
      RoundingCount count(this->rounding_);
      OP_REQUIRES_OK(ctx, this->LockAndCheck(ctx, access, &variables, &count));
      OP_REQUIRES(ctx, variables.tensor(kVar).shape() == shape,
                  absl::InvalidArgumentError(absl::StrCat(
                      "var must keep its shape during the update, but had ",
                      shape.DebugString(), " and has ",
                      variables.tensor(kVar).shape().DebugString())));
      if (ctx->input(kIndices).NumElements() > 0 || this->count_empty_) {
        OP_REQUIRES_OK(ctx, Apply(ctx, access, rows, variables, count));
      }
    }
    ForwardRefToOutput(ctx);
  }

 private:
  // Sorts the indices before the powers are locked, so that updates that may
  // run side by side do not wait for each other.
  absl::Status FindRows(OpKernelContext* ctx, TensorShape* shape,
                        RowGroups* rows) const {
    {
      LockedVariables variables;
      TF_RETURN_IF_ERROR(variables.Lock(
          ctx, {Base::Request(kVar, Base::kDtype, Access::kRead)}));
      *shape = variables.tensor(kVar).shape();
    }
    TF_RETURN_IF_ERROR(
        CheckSparseShapes(ctx->input(kGrad), ctx->input(kIndices), *shape));
    return GroupRows(ctx, ctx->input(kIndices), shape->dim_size(0),
                     this->validate_indices_ ? RowGroups::BadRows::kRefused
                                             : RowGroups::BadRows::kIgnored,
                     rows);
  }

  absl::Status Apply(OpKernelContext* ctx, Access access, const RowGroups& rows,
                     LockedVariables& variables, RoundingCount& count) const {
    TF_RETURN_IF_ERROR(count.Prepare(ctx, variables));
    if (access == Access::kExclusive) {
      for (const AdamAsyncInput input : {kVar, kM, kV}) {
        TF_RETURN_IF_ERROR(variables.PrepareToWrite(ctx, input));
      }
    }
    if (!this->use_rmsprop_) {
      TF_RETURN_IF_ERROR(PreparePowers(ctx, variables));
    }
    AdamAsyncUpdate<Slot> update;
    if (this->use_rmsprop_) {
      const float momentum = this->rmsprop_momentum_;
      update = {AdamAsyncFormula::kRmsprop, Scalar<Slot>(ctx, kLr),
                momentum < 0 ? Scalar<Slot>(ctx, kBeta1) : Slot(momentum),
                Scalar<Slot>(ctx, kBeta2), Scalar<Slot>(ctx, kEpsilon)};
    } else {
      update = TakeStep<Slot>(ctx, this->Formula(), variables);
    }
    count.Take(variables);
    count.Unlock(variables);
    if (access == Access::kShared) {
      // The step is computed. If the powers stayed locked, updates that may run
      // side by side would wait for each other.
      variables.Unlock(kBeta1Power);
      variables.Unlock(kBeta2Power);
    }
    if (rows.size() > 0) {
      DeviceSharder sharder(ctx);
      SparseApplyAdamAsync(
          update, rows,
          ctx->input(kGrad).NumElements() / ctx->input(kIndices).NumElements(),
          Base::GradData(ctx), Base::VarData(variables),
          variables.data<Slot>(kM), variables.data<Slot>(kV), sharder,
          BestCpuLevel(), count.draws());
    }
    return absl::OkStatus();
  }
};

#define TF_SYNCREP_REGISTER(T)                                                \
  REGISTER_KERNEL_BUILDER(Name("ApplyAdamAsync")                              \
                              .Device(tensorflow::DEVICE_CPU)                 \
                              .TypeConstraint<T>("T"),                        \
                          ApplyAdamAsyncOp<T>);                               \
  REGISTER_KERNEL_BUILDER(Name("ResourceApplyAdamAsync")                      \
                              .Device(tensorflow::DEVICE_CPU)                 \
                              .TypeConstraint<T>("T"),                        \
                          ApplyAdamAsyncOp<T>);                               \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>ResourceApplyAdamAsyncRounded")       \
                              .Device(tensorflow::DEVICE_CPU)                 \
                              .TypeConstraint<T>("T"),                        \
                          ApplyAdamAsyncOp<T>);                               \
  REGISTER_KERNEL_BUILDER(Name("SparseApplyAdamAsync")                        \
                              .Device(tensorflow::DEVICE_CPU)                 \
                              .TypeConstraint<T>("T"),                        \
                          SparseApplyAdamAsyncOp<T>);                         \
  REGISTER_KERNEL_BUILDER(Name("ResourceSparseApplyAdamAsync")                \
                              .Device(tensorflow::DEVICE_CPU)                 \
                              .TypeConstraint<T>("T"),                        \
                          SparseApplyAdamAsyncOp<T>);                         \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>ResourceSparseApplyAdamAsyncRounded") \
                              .Device(tensorflow::DEVICE_CPU)                 \
                              .TypeConstraint<T>("T"),                        \
                          SparseApplyAdamAsyncOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
