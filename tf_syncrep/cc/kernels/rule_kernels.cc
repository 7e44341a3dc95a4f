// CPU kernels of the ops that update a variable by a rule: check, lock, call
// cc/lib/rules.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/rule_op.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"
#include "tf_syncrep/cc/lib/rules/apply_rule.h"
#include "tf_syncrep/cc/lib/rules/rules.h"
#include "tf_syncrep/cc/ops/rule_inputs.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using Access = LockedVariables::Access;

template <typename T>
class RuleOpBase : public OpKernel {
 public:
  explicit RuleOpBase(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, op_.Find(ctx));
  }

  void Compute(OpKernelContext* ctx) final {
    OP_REQUIRES_OK(ctx, Update(ctx));
    ForwardRefToOutput(ctx);
  }

 protected:
  using LibT = LibType<T>;
  using Slot = SlotType<LibT>;

  virtual absl::Status Update(OpKernelContext* ctx) const = 0;

  absl::Status ReadNumbers(OpKernelContext* ctx,
                           std::vector<Slot>* numbers) const {
    for (int i = 0; i < op_.inputs.num_numbers(); ++i) {
      numbers->push_back(*Data<const Slot>(ctx->input(op_.inputs.number(i))));
    }
    const Slot lr = numbers->front();
    if (op_.inputs.info->divides_by_lr && !(lr >= 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat(op_.inputs.info->numbers[0], " of rule ",
                       std::string(op_.inputs.info->name),
                       " must be at least 0, but is ", lr));
    }
    return absl::OkStatus();
  }

  // A rate of 0 moves nothing. Rules that divide by it cannot compute that.
  bool MovesNothing(const std::vector<Slot>& numbers) const {
    return op_.inputs.info->divides_by_lr && numbers.front() == 0;
  }

  // RMSProp neither reads nor advances the powers.
  bool TakesPowers() const {
    return op_.has_powers() && op_.formula != AdamAsyncFormula::kRmsprop;
  }

  // Puts the step size or the momentum into AdamAsync's numbers, and advances
  // the powers, which are prepared to be written.
  void TakeStep(LockedVariables& variables, std::vector<Slot>& numbers) const {
    if (TakesPowers()) {
      Slot& beta1_power = *variables.data<Slot>(op_.inputs.power(0));
      Slot& beta2_power = *variables.data<Slot>(op_.inputs.power(1));
      numbers[0] = AdamAsyncStepSize(numbers[0], beta1_power, beta2_power);
      beta1_power *= numbers[1];
      beta2_power *= numbers[2];
    } else if (op_.has_powers() && !(op_.rmsprop_momentum < 0)) {
      numbers[1] = static_cast<Slot>(op_.rmsprop_momentum);
    }
  }

  RuleArrays<LibT> Arrays(LockedVariables& variables) const {
    RuleArrays<LibT> arrays = {variables.data<LibT>(kRuleVar)};
    for (int i = 0; i < op_.inputs.num_slots(); ++i) {
      arrays.slots[i] = variables.data<Slot>(op_.inputs.slot(i));
    }
    return arrays;
  }

  RuleOp op_;
};

template <typename T>
class ApplyRuleOp final : public RuleOpBase<T> {
 public:
  using Base = RuleOpBase<T>;
  using Base::Base;
  using typename Base::LibT;
  using typename Base::Slot;

 private:
  absl::Status Update(OpKernelContext* ctx) const override {
    const RuleOp& op = this->op_;
    LockedVariables variables;
    std::vector<Slot> numbers;
    TF_RETURN_IF_ERROR(op.LockAndCheck(ctx, Access::kExclusive, &variables));
    TF_RETURN_IF_ERROR(this->ReadNumbers(ctx, &numbers));
    const Tensor& var = variables.tensor(kRuleVar);
    const Tensor& grad = ctx->input(op.inputs.grad());
    TF_RETURN_IF_ERROR(CheckSameShapeAsVar("grad", grad.shape(), var.shape()));
    TF_RETURN_IF_ERROR(op.PrepareCount(ctx, variables));
    // Rows without elements still have slots of one number each, which stay.
    // Powers advance.
    if (!op.has_powers() &&
        (var.NumElements() == 0 || this->MovesNothing(numbers))) {
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(
        PrepareToWrite(ctx, kRuleVar, op.inputs.number(0), &variables));
    this->TakeStep(variables, numbers);
    const auto draws = op.Count(variables);
    const int64_t num_rows =
        var.dims() == 0 ? 1 : std::max<int64_t>(var.dim_size(0), 1);
    DeviceSharder sharder(ctx);
    WithRule(op.inputs.info->name, numbers.data(), [&](const auto& rule) {
      ApplyRule(RuleOf<LibT>(rule, BestCpuLevel(), draws ? &*draws : nullptr),
                num_rows, var.NumElements() / num_rows, Data<const LibT>(grad),
                this->Arrays(variables), sharder);
    });
    return absl::OkStatus();
  }
};

template <typename T>
class SparseApplyRuleOp final : public RuleOpBase<T> {
 public:
  using Base = RuleOpBase<T>;
  using Base::Base;
  using typename Base::LibT;
  using typename Base::Slot;

 private:
  absl::Status Update(OpKernelContext* ctx) const override {
    const RuleOp& op = this->op_;
    TensorShape shape;
    RowGroups rows;
    TF_RETURN_IF_ERROR(FindRows(ctx, &shape, &rows));
    LockedVariables variables;
    std::vector<Slot> numbers;
    TF_RETURN_IF_ERROR(op.LockAndCheck(
        ctx, op.use_locking ? Access::kExclusive : Access::kShared,
        &variables));
    const TensorShape& var_shape = variables.tensor(kRuleVar).shape();
    if (var_shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "var must keep its shape during the update, but had ",
          shape.DebugString(), " and has ", var_shape.DebugString()));
    }
    TF_RETURN_IF_ERROR(this->ReadNumbers(ctx, &numbers));
    const int64_t num_indices = ctx->input(op.inputs.indices()).NumElements();
    if (num_indices == 0 && !op.count_empty) {
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(op.PrepareCount(ctx, variables));
    const bool moves = rows.size() > 0 && !this->MovesNothing(numbers);
    if (op.use_locking && moves) {
      TF_RETURN_IF_ERROR(
          PrepareToWrite(ctx, kRuleVar, op.inputs.power(0), &variables));
    }
    if (this->TakesPowers()) {
      TF_RETURN_IF_ERROR(PrepareToWrite(ctx, op.inputs.power(0),
                                        op.inputs.number(0), &variables));
    }
    this->TakeStep(variables, numbers);
    // A call without rows counts, too, so that all parts of a table agree.
    const auto draws = op.Count(variables);
    // The step is computed. If count and powers stayed locked, updates that may
    // run side by side would wait for each other.
    if (op.has_count) {
      variables.Unlock(op.count());
    }
    for (int i = 0; i < op.inputs.num_powers() && !op.use_locking; ++i) {
      variables.Unlock(op.inputs.power(i));
    }
    if (!moves) {
      return absl::OkStatus();
    }
    DeviceSharder sharder(ctx);
    const Tensor& grad = ctx->input(op.inputs.grad());
    WithRule(op.inputs.info->name, numbers.data(), [&](const auto& rule) {
      SparseApplyRule(
          RuleOf<LibT>(rule, BestCpuLevel(), draws ? &*draws : nullptr), rows,
          grad.NumElements() / num_indices, Data<const LibT>(grad),
          this->Arrays(variables), sharder);
    });
    return absl::OkStatus();
  }

  // Sorts the indices before powers and count are locked, so that updates that
  // may run side by side do not wait for each other.
  absl::Status FindRows(OpKernelContext* ctx, TensorShape* shape,
                        RowGroups* rows) const {
    const RuleOp& op = this->op_;
    {
      LockedVariables variables;
      TF_RETURN_IF_ERROR(
          variables.Lock(ctx, {{kRuleVar, "var", op.dtype, Access::kRead}}));
      *shape = variables.tensor(kRuleVar).shape();
    }
    const Tensor& indices = ctx->input(op.inputs.indices());
    TF_RETURN_IF_ERROR(
        CheckSparseShapes(ctx->input(op.inputs.grad()), indices, *shape));
    return GroupRows(ctx, indices, shape->dim_size(0),
                     op.validate_indices ? RowGroups::BadRows::kRefused
                                         : RowGroups::BadRows::kIgnored,
                     rows);
  }
};

#define TF_SYNCREP_REGISTER_OP(NAME, KERNEL, T)                         \
  REGISTER_KERNEL_BUILDER(                                              \
      Name(NAME).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      KERNEL<T>)

#define TF_SYNCREP_REGISTER(T)                                                 \
  TF_SYNCREP_REGISTER_OP("ApplyAdamAsync", ApplyRuleOp, T);                    \
  TF_SYNCREP_REGISTER_OP("ResourceApplyAdamAsync", ApplyRuleOp, T);            \
  TF_SYNCREP_REGISTER_OP("Syncrep>ApplyRule", ApplyRuleOp, T);                 \
  TF_SYNCREP_REGISTER_OP("Syncrep>ResourceApplyAdamAsyncRounded", ApplyRuleOp, \
                         T);                                                   \
  TF_SYNCREP_REGISTER_OP("Syncrep>ResourceApplyRule", ApplyRuleOp, T);         \
  TF_SYNCREP_REGISTER_OP("SparseApplyAdamAsync", SparseApplyRuleOp, T);        \
  TF_SYNCREP_REGISTER_OP("ResourceSparseApplyAdamAsync", SparseApplyRuleOp,    \
                         T);                                                   \
  TF_SYNCREP_REGISTER_OP("Syncrep>SparseApplyRule", SparseApplyRuleOp, T);     \
  TF_SYNCREP_REGISTER_OP("Syncrep>ResourceSparseApplyAdamAsyncRounded",        \
                         SparseApplyRuleOp, T);                                \
  TF_SYNCREP_REGISTER_OP("Syncrep>ResourceSparseApplyRule", SparseApplyRuleOp, \
                         T)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER
#undef TF_SYNCREP_REGISTER_OP

}  // namespace
}  // namespace tf_syncrep
