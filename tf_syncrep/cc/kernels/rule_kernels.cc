// CPU kernels of the ops that update a variable by a rule: check, lock, call
// cc/lib/rules.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/rounding_op.h"
#include "tf_syncrep/cc/kernels/update_checks.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"
#include "tf_syncrep/cc/lib/rules/apply_rule.h"
#include "tf_syncrep/cc/lib/rules/rules.h"
#include "tf_syncrep/cc/ops/rule_inputs.h"
#include "tf_syncrep/cc/ops/update_shapes.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/scalar_input.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::DataTypeToEnum;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using Access = LockedVariables::Access;

TensorShape RowSlotShape(const TensorShape& var_shape) {
  TensorShape shape;
  for (int i = 0; i < var_shape.dims(); ++i) {
    shape.AddDim(i == 0 ? var_shape.dim_size(0) : 1);
  }
  return shape;
}

// What both kernels share: their variables and their rule.
template <typename T>
class RuleOpBase : public OpKernel {
 public:
  explicit RuleOpBase(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, CheckSlotType(*ctx));
    OP_REQUIRES_OK(ctx, RuleInputs::Find(*ctx, &inputs_));
    OP_REQUIRES_OK(ctx, rounding_.Find(ctx));
  }

 protected:
  using LibT = LibType<T>;
  using Slot = SlotType<LibT>;

  static constexpr DataType kDtype = DataTypeToEnum<T>::value;
  static constexpr DataType kSlotDtype = DataTypeToEnum<Slot>::value;

  // Locks var, slots and the count; then checks all but the count and the
  // gradient, and copies the numbers.
  absl::Status LockAndCheck(OpKernelContext* ctx, Access access,
                            LockedVariables* variables, RoundingCount* count,
                            std::vector<Slot>* numbers) const {
    std::vector<LockedVariables::Request> requests = {
        {kRuleVar, "var", kDtype, access}};
    for (int i = 0; i < inputs_.num_slots(); ++i) {
      requests.push_back(
          {inputs_.slot(i), inputs_.info->slots[i], kSlotDtype, access});
    }
    count->Request(ctx, &requests);
    TF_RETURN_IF_ERROR(variables->Lock(ctx, requests));
    const TensorShape& var_shape = variables->tensor(kRuleVar).shape();
    for (int i = 0; i < inputs_.num_slots(); ++i) {
      TF_RETURN_IF_ERROR(CheckSlotShape(
          inputs_.info->slots[i], variables->tensor(inputs_.slot(i)).shape(),
          var_shape));
    }
    for (int i = 0; i < inputs_.num_numbers(); ++i) {
      const Tensor& number = ctx->input(inputs_.number(i));
      TF_RETURN_IF_ERROR(CheckScalar(number, inputs_.info->numbers[i]));
      numbers->push_back(*Data<const Slot>(number));
    }
    const Slot lr = numbers->front();
    if (inputs_.info->divides_by_lr && !(lr >= 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          inputs_.info->numbers[0], " of rule ",
          std::string(inputs_.info->name), " must be at least 0, but is ", lr));
    }
    return absl::OkStatus();
  }

  // A rate of 0 moves nothing. Rules that divide by it cannot compute that.
  bool MovesNothing(const std::vector<Slot>& numbers) const {
    return inputs_.info->divides_by_lr && numbers.front() == 0;
  }

  RuleArrays<LibT> Arrays(LockedVariables& variables) const {
    RuleArrays<LibT> arrays = {variables.data<LibT>(kRuleVar)};
    for (int i = 0; i < inputs_.num_slots(); ++i) {
      arrays.slots[i] = variables.data<Slot>(inputs_.slot(i));
    }
    return arrays;
  }

  RuleInputs inputs_;
  RoundingAttributes rounding_;

 private:
  absl::Status CheckSlotShape(const char* name, const TensorShape& shape,
                              const TensorShape& var_shape) const {
    if (!inputs_.info->is_rowwise) {
      return CheckSameShapeAsVar(name, shape, var_shape);
    }
    const TensorShape expected = RowSlotShape(var_shape);
    if (shape == expected) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must have shape ", expected.DebugString(),
                     " for a var of shape ", var_shape.DebugString(),
                     ", but has shape ", shape.DebugString()));
  }
};

template <typename T>
class ApplyRuleOp final : public RuleOpBase<T> {
 public:
  using Base = RuleOpBase<T>;
  using Base::Base;
  using typename Base::LibT;
  using typename Base::Slot;

  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    std::vector<Slot> numbers;
    RoundingCount count(this->rounding_);
    OP_REQUIRES_OK(ctx, this->LockAndCheck(ctx, Access::kExclusive, &variables,
                                           &count, &numbers));
    const Tensor& var = variables.tensor(kRuleVar);
    const Tensor& grad = ctx->input(this->inputs_.grad());
    OP_REQUIRES_OK(ctx, CheckSameShapeAsVar("grad", grad.shape(), var.shape()));
    OP_REQUIRES_OK(ctx, count.Prepare(ctx, variables));
    // Rows without elements still have slots of one number each, which stay.
    if (var.NumElements() == 0 || this->MovesNothing(numbers)) {
      return;
    }
    for (int i = 0; i < 1 + this->inputs_.num_slots(); ++i) {
      OP_REQUIRES_OK(ctx, variables.PrepareToWrite(ctx, i));
    }
    const int64_t num_rows = var.dims() == 0 ? 1 : var.dim_size(0);
    const int64_t row_size = var.NumElements() / num_rows;
    count.Take(variables);
    DeviceSharder sharder(ctx);
    WithRule(this->inputs_.info->name, numbers.data(), [&](const auto& rule) {
      ApplyRule(RuleOf<LibT>(rule, BestCpuLevel(), count.draws()), num_rows,
                row_size, Data<const LibT>(grad), this->Arrays(variables),
                sharder);
    });
  }
};

template <typename T>
class SparseApplyRuleOp final : public RuleOpBase<T> {
 public:
  using Base = RuleOpBase<T>;
  using typename Base::LibT;
  using typename Base::Slot;

  explicit SparseApplyRuleOp(OpKernelConstruction* ctx) : Base(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
  }

  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    std::vector<Slot> numbers;
    RoundingCount count(this->rounding_);
    const Access access = use_locking_ ? Access::kExclusive : Access::kShared;
    OP_REQUIRES_OK(
        ctx, this->LockAndCheck(ctx, access, &variables, &count, &numbers));
    const TensorShape& var_shape = variables.tensor(kRuleVar).shape();
    const Tensor& grad = ctx->input(this->inputs_.grad());
    const Tensor& indices = ctx->input(this->inputs_.indices());
    OP_REQUIRES_OK(ctx, CheckSparseShapes(grad, indices, var_shape));
    RowGroups rows;
    OP_REQUIRES_OK(ctx, GroupRows(ctx, indices, var_shape.dim_size(0),
                                  RowGroups::BadRows::kRefused, &rows));
    OP_REQUIRES_OK(ctx, count.Prepare(ctx, variables));
    const bool moves = rows.size() > 0 && !this->MovesNothing(numbers);
    if (use_locking_ && moves) {
      for (int i = 0; i < 1 + this->inputs_.num_slots(); ++i) {
        OP_REQUIRES_OK(ctx, variables.PrepareToWrite(ctx, i));
      }
    }
    // A call without rows counts, too, so that all parts of a table agree.
    count.Take(variables);
    count.Unlock(variables);
    if (!moves) {
      return;
    }
    DeviceSharder sharder(ctx);
    WithRule(this->inputs_.info->name, numbers.data(), [&](const auto& rule) {
      SparseApplyRule(RuleOf<LibT>(rule, BestCpuLevel(), count.draws()), rows,
                      grad.NumElements() / indices.NumElements(),
                      Data<const LibT>(grad), this->Arrays(variables), sharder);
    });
  }

 private:
  bool use_locking_;
};

#define TF_SYNCREP_REGISTER(T)                                    \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>ApplyRule")               \
                              .Device(tensorflow::DEVICE_CPU)     \
                              .TypeConstraint<T>("T"),            \
                          ApplyRuleOp<T>);                        \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>ResourceApplyRule")       \
                              .Device(tensorflow::DEVICE_CPU)     \
                              .TypeConstraint<T>("T"),            \
                          ApplyRuleOp<T>);                        \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>SparseApplyRule")         \
                              .Device(tensorflow::DEVICE_CPU)     \
                              .TypeConstraint<T>("T"),            \
                          SparseApplyRuleOp<T>);                  \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>ResourceSparseApplyRule") \
                              .Device(tensorflow::DEVICE_CPU)     \
                              .TypeConstraint<T>("T"),            \
                          SparseApplyRuleOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
