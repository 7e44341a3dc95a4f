#include "tf_syncrep/cc/kernels/rule_op.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tf_syncrep/cc/lib/rules/rules.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
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

absl::Status CheckOneElement(absl::string_view name, const TensorShape& shape) {
  if (shape.num_elements() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must have exactly one element, but has shape ",
                     shape.DebugString()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RuleOp::Find(OpKernelConstruction* ctx) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("T", &dtype));
  TF_RETURN_IF_ERROR(ctx->GetAttr("Tslot", &slot_dtype));
  TF_RETURN_IF_ERROR(RuleInputs::Find(*ctx, &inputs));
  const bool is_sparse = ctx->HasAttr("Tindices");
  const int num_inputs = (is_sparse ? inputs.indices() : inputs.grad()) + 1;
  TF_RETURN_IF_ERROR(CheckNumRoundingCounts(ctx->num_inputs() - num_inputs));
  has_count = ctx->num_inputs() > num_inputs;
  if (has_count) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("rounding_seed", &rounding_seed));
    TF_RETURN_IF_ERROR(ctx->GetAttr("first_row", &first_row));
    TF_RETURN_IF_ERROR(ctx->GetAttr("row_stride", &row_stride));
  }
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
                                  LockedVariables* variables) const {
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
  if (has_count) {
    requests.push_back({ctx->num_inputs() - 1, kRoundingCount,
                        tensorflow::DT_INT64, Access::kExclusive});
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

absl::Status RuleOp::PrepareCount(OpKernelContext* ctx,
                                  LockedVariables& variables) const {
  if (!has_count) {
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(
      CheckOneElement(kRoundingCount, variables.tensor(count()).shape()));
  return variables.PrepareToWrite(ctx, count());
}

std::optional<RoundingDraws> RuleOp::Count(LockedVariables& variables) const {
  if (!has_count) {
    return std::nullopt;
  }
  const int64_t update = --*variables.data<int64_t>(count());
  return RoundingDraws(rounding_seed, update, first_row, row_stride);
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

absl::Status CheckSameShapeAsVar(absl::string_view name,
                                 const TensorShape& shape,
                                 const TensorShape& var_shape) {
  if (shape != var_shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must have the shape of var, ", var_shape.DebugString(),
        ", but has shape ", shape.DebugString()));
  }
  return absl::OkStatus();
}

absl::Status CheckSparseShapes(const Tensor& grad, const Tensor& indices,
                               const TensorShape& var_shape) {
  if (var_shape.dims() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("var must have at least rank 1 for a sparse gradient, "
                     "but has shape ",
                     var_shape.DebugString()));
  }
  TF_RETURN_IF_ERROR(CheckVector(indices, "indices"));
  TensorShape expected = var_shape;
  // A variable without rows may have rows of any size.
  TF_RETURN_IF_ERROR(expected.SetDimWithStatus(0, indices.NumElements()));
  if (grad.shape() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("grad must have shape ", expected.DebugString(), " for ",
                     indices.NumElements(), " indices and a var of shape ",
                     var_shape.DebugString(), ", but has shape ",
                     grad.shape().DebugString()));
  }
  return absl::OkStatus();
}

absl::Status IndexOutOfRange(int64_t position, int64_t index,
                             int64_t num_rows) {
  return absl::InvalidArgumentError(absl::StrCat(
      "indices[", position, "] = ", index,
      " is out of range: it must be in [0, ", num_rows, "), the rows of var"));
}

absl::Status GroupRows(OpKernelContext* ctx, const Tensor& indices,
                       int64_t num_rows, RowGroups::BadRows bad_rows,
                       RowGroups* rows) {
  const int64_t size = indices.NumElements();
  for (const auto& [name, num] :
       {std::pair<const char*, int64_t>("var", num_rows), {"indices", size}}) {
    if (num > RowGroups::kMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must have at most ", RowGroups::kMax,
                       " rows for a sparse update, but has ", num));
    }
  }
  DeviceSharder sharder(ctx);
  BadRow bad_row;
  const auto find = [&](const auto* data) {
    return rows->Find(data, size, num_rows, bad_rows, sharder, &bad_row);
  };
  switch (indices.dtype() == tensorflow::DT_INT32
              ? find(Data<const int32_t>(indices))
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

}  // namespace tf_syncrep
