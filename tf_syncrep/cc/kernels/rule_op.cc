#include "tf_syncrep/cc/kernels/rule_op.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf_syncrep/cc/kernels/update_checks.h"
#include "tf_syncrep/cc/lib/rules/rules.h"
#include "tf_syncrep/cc/ops/update_shapes.h"
#include "tf_syncrep/cc/tf/scalar_input.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::TensorShape;
using Access = LockedVariables::Access;

absl::Status CheckRowSlotShape(absl::string_view name, const TensorShape& shape,
                               const TensorShape& var_shape) {
  TensorShape expected;
  for (int i = 0; i < var_shape.dims(); ++i) {
    expected.AddDim(i == 0 ? var_shape.dim_size(0) : 1);
  }
  if (shape == expected) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name, " must have shape ", expected.DebugString(), " for a var of shape ",
      var_shape.DebugString(), ", but has shape ", shape.DebugString()));
}

}  // namespace

absl::Status RuleOp::Find(OpKernelConstruction* ctx) {
  TF_RETURN_IF_ERROR(CheckSlotType(*ctx));
  TF_RETURN_IF_ERROR(ctx->GetAttr("T", &dtype));
  TF_RETURN_IF_ERROR(ctx->GetAttr("Tslot", &slot_dtype));
  TF_RETURN_IF_ERROR(RuleInputs::Find(*ctx, &inputs));
  const bool is_sparse = ctx->HasAttr("Tindices");
  TF_RETURN_IF_ERROR(
      rounding.Find(ctx, (is_sparse ? inputs.indices() : inputs.grad()) + 1));
  if (is_sparse) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("use_locking", &use_locking));
  }
  if (!has_powers()) {
    return absl::OkStatus();
  }
  bool use_nesterov = false;
  bool use_rmsprop = false;
  TF_RETURN_IF_ERROR(ctx->GetAttr("use_nesterov", &use_nesterov));
  if (is_sparse) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("apply_sparse_rmsprop", &use_rmsprop));
    TF_RETURN_IF_ERROR(ctx->GetAttr("rmsprop_momentum", &rmsprop_momentum));
    TF_RETURN_IF_ERROR(ctx->GetAttr("validate_indices", &validate_indices));
    TF_RETURN_IF_ERROR(ctx->GetAttr("count_empty", &count_empty));
  }
  formula = use_rmsprop    ? AdamAsyncFormula::kRmsprop
            : use_nesterov ? AdamAsyncFormula::kNesterov
                           : AdamAsyncFormula::kAdam;
  inputs.info = FindRule(kAdamAsyncNames[static_cast<int>(formula)]);
  return absl::OkStatus();
}

absl::Status RuleOp::LockAndCheck(OpKernelContext* ctx, Access access,
                                  LockedVariables* variables,
                                  RoundingCount* count) const {
  std::vector<LockedVariables::Request> requests = {
      {kRuleVar, "var", dtype, access}};
  for (int i = 0; i < inputs.num_slots(); ++i) {
    requests.push_back(
        {inputs.slot(i), inputs.info->slots[i], slot_dtype, access});
  }
  for (int i = 0; i < inputs.num_powers(); ++i) {
    requests.push_back(
        {inputs.power(i), inputs.powers[i], slot_dtype, Access::kExclusive});
  }
  if (count != nullptr) {
    count->Request(ctx, &requests);
  }
  TF_RETURN_IF_ERROR(variables->Lock(ctx, requests));
  const TensorShape& var_shape = variables->tensor(kRuleVar).shape();
  for (int i = 0; i < inputs.num_slots(); ++i) {
    const TensorShape& shape = variables->tensor(inputs.slot(i)).shape();
    TF_RETURN_IF_ERROR(
        (inputs.info->is_rowwise ? CheckRowSlotShape : CheckSameShapeAsVar)(
            inputs.info->slots[i], shape, var_shape));
  }
  for (int i = 0; i < inputs.num_powers(); ++i) {
    TF_RETURN_IF_ERROR(CheckOneElement(
        inputs.powers[i], variables->tensor(inputs.power(i)).shape()));
  }
  for (int i = 0; i < inputs.num_numbers(); ++i) {
    TF_RETURN_IF_ERROR(
        CheckScalar(ctx->input(inputs.number(i)), inputs.info->numbers[i]));
  }
  return absl::OkStatus();
}

absl::Status PrepareToWrite(OpKernelContext* ctx, int begin, int end,
                            LockedVariables* variables) {
  for (int i = begin; i < end; ++i) {
    TF_RETURN_IF_ERROR(variables->PrepareToWrite(ctx, i));
  }
  return absl::OkStatus();
}

void ForwardRefToOutput(OpKernelContext* ctx) {
  if (ctx->num_outputs() > 0) {
    ctx->forward_ref_input_to_ref_output(kRuleVar, 0);
  }
}

}  // namespace tf_syncrep
