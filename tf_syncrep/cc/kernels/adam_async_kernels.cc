// CPU kernels of the AdamAsync ops: check, lock, call cc/lib/adam_async.

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/adam_async_op.h"
#include "tf_syncrep/cc/kernels/adam_async_step.h"
#include "tf_syncrep/cc/lib/adam_async.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DT_INT32;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
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
      OP_REQUIRES_OK(ctx, this->LockVariables(ctx, Access::kExclusive,
                                              Access::kExclusive, &variables));
      OP_REQUIRES_OK(ctx, CheckHyperParameters(ctx));
      OP_REQUIRES_OK(ctx, CheckSlotShapes(variables));
      OP_REQUIRES_OK(ctx, CheckSameShapeAsVar(kGrad, ctx->input(kGrad).shape(),
                                              variables.tensor(kVar).shape()));
      DenseBefore before;
      OP_REQUIRES_OK(ctx, PrepareDenseStep(ctx, variables, &before));
      const auto update = TakeStep<Slot>(ctx, this->Formula(), variables);
      DeviceSharder sharder(ctx);
      ApplyAdamAsync<LibT>(update, variables.tensor(kVar).NumElements(),
                           Base::GradData(ctx), DataBefore<LibT>(before),
                           Base::VarData(variables), variables.data<Slot>(kM),
                           variables.data<Slot>(kV), sharder);
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
      const Access access =
          this->use_locking_ ? Access::kExclusive : Access::kShared;
      LockedVariables variables;
      OP_REQUIRES_OK(ctx, this->LockVariables(ctx, access, Access::kExclusive,
                                              &variables));
      OP_REQUIRES_OK(ctx, CheckHyperParameters(ctx));
      OP_REQUIRES_OK(ctx, CheckSlotShapes(variables));
      OP_REQUIRES_OK(ctx,
                     CheckSparseShapes(ctx, variables.tensor(kVar).shape()));
      RowGroups rows;
      OP_REQUIRES_OK(ctx,
                     GroupRows(ctx, variables.tensor(kVar).dim_size(0), &rows));
      if (ctx->input(kIndices).NumElements() > 0 || this->count_empty_) {
        OP_REQUIRES_OK(ctx, Apply(ctx, access, rows, variables));
      }
    }
    ForwardRefToOutput(ctx);
  }

 private:
  // Copies the indices, sorted, into `rows` and checks them there: inputs may
  // be ref variables, which others can change after the check.
  absl::Status GroupRows(OpKernelContext* ctx, int64_t num_rows,
                         RowGroups* rows) const {
    const Tensor& indices = ctx->input(kIndices);
    const int64_t size = indices.NumElements();
    const auto bad_rows = this->validate_indices_
                              ? RowGroups::BadRows::kRefused
                              : RowGroups::BadRows::kIgnored;
    DeviceSharder sharder(ctx);
    BadRow bad_row;
    const auto find = [&](const auto* data) {
      return rows->Find(data, size, num_rows, bad_rows, sharder, &bad_row);
    };
    switch (indices.dtype() == DT_INT32 ? find(Data<const int32_t>(indices))
                                        : find(Data<const int64_t>(indices))) {
      case RowGroups::Status::kBadRow:
        return IndexOutOfRange(bad_row.position, bad_row.row, num_rows);
      case RowGroups::Status::kOutOfMemory:
        return OutOfMemory(absl::StrCat("the order of ", size, " indices"),
                           2 * size * sizeof(RowOccurrence<uint32_t>));
      case RowGroups::Status::kOk:
        break;
    }
    return absl::OkStatus();
  }

  absl::Status Apply(OpKernelContext* ctx, Access access, const RowGroups& rows,
                     LockedVariables& variables) const {
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
    if (access == Access::kShared) {
      // The step is taken; holding the powers any longer would make updates
      // that may run side by side wait for each other.
      variables.Unlock(kBeta1Power);
      variables.Unlock(kBeta2Power);
    }
    if (rows.size() > 0) {
      DeviceSharder sharder(ctx);
      SparseApplyAdamAsync(
          update, rows,
          ctx->input(kGrad).NumElements() / ctx->input(kIndices).NumElements(),
          Base::GradData(ctx), Base::VarData(variables),
          variables.data<Slot>(kM), variables.data<Slot>(kV), sharder);
    }
    return absl::OkStatus();
  }
};

#define TF_SYNCREP_REGISTER(T)                                 \
  REGISTER_KERNEL_BUILDER(Name("ApplyAdamAsync")               \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("T"),         \
                          ApplyAdamAsyncOp<T>);                \
  REGISTER_KERNEL_BUILDER(Name("ResourceApplyAdamAsync")       \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("T"),         \
                          ApplyAdamAsyncOp<T>);                \
  REGISTER_KERNEL_BUILDER(Name("SparseApplyAdamAsync")         \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("T"),         \
                          SparseApplyAdamAsyncOp<T>);          \
  REGISTER_KERNEL_BUILDER(Name("ResourceSparseApplyAdamAsync") \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("T"),         \
                          SparseApplyAdamAsyncOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
