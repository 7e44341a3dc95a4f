// Declares the ops that update a variable by a rule: attributes, shapes,
// documentation.

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/lib/rules/rules.h"
#include "tf_syncrep/cc/ops/rounding_inputs.h"
#include "tf_syncrep/cc/ops/rule_inputs.h"
#include "tf_syncrep/cc/ops/update_shapes.h"

namespace tf_syncrep {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The shape of a rowwise rule's slot: the first dimension of var, and 1 for all
// others.
ShapeHandle RowSlotShape(InferenceContext* c, ShapeHandle var) {
  if (!c->RankKnown(var)) {
    return c->UnknownShape();
  }
  std::vector<DimensionHandle> dims(c->Rank(var), c->MakeDim(1));
  if (!dims.empty()) {
    dims[0] = c->Dim(var, 0);
  }
  return c->MakeShape(dims);
}

// Checks all inputs except the gradient; `shape` becomes var's shape.
template <bool kIsResource>
absl::Status CheckVariables(InferenceContext* c, RuleInputs* inputs,
                            ShapeHandle* shape) {
  TF_RETURN_IF_ERROR(CheckSlotType(*c));
  TF_RETURN_IF_ERROR(RuleInputs::Find(*c, inputs));
  *shape = VariableShape<kIsResource>(c, kRuleVar);
  for (int i = 0; i < inputs->num_slots(); ++i) {
    const ShapeHandle slot = VariableShape<kIsResource>(c, inputs->slot(i));
    const char* name = inputs->info->slots[i];
    if (inputs->info->is_rowwise) {
      ShapeHandle expected = RowSlotShape(c, *shape);
      if (!c->Merge(expected, slot, &expected).ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " must have shape ", c->DebugString(expected),
                         " for a var of shape ", c->DebugString(*shape),
                         ", but has shape ", c->DebugString(slot)));
      }
    } else {
      TF_RETURN_IF_ERROR(MergeShape(c, name, slot, shape));
    }
  }
  for (int i = 0; i < inputs->num_numbers(); ++i) {
    TF_RETURN_IF_ERROR(
        CheckRank(c, inputs->info->numbers[i], inputs->number(i), 0, "scalar"));
  }
  return absl::OkStatus();
}

template <bool kIsResource>
absl::Status DenseShape(InferenceContext* c) {
  RuleInputs inputs;
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(CheckVariables<kIsResource>(c, &inputs, &shape));
  return MergeShape(c, "grad", c->input(inputs.grad()), &shape);
}

template <bool kIsResource>
absl::Status SparseShape(InferenceContext* c) {
  RuleInputs inputs;
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(CheckVariables<kIsResource>(c, &inputs, &shape));
  return CheckSparseShapes(c, inputs.grad(), inputs.indices(), shape);
}

// Also checks the count of updates, the last input, if there is one.
template <absl::Status (*kShape)(InferenceContext*)>
absl::Status RoundedShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(kShape(c));
  bool is_given = false;
  TF_RETURN_IF_ERROR(FindRoundingCount(*c, &is_given));
  return is_given ? CheckRoundingCountShape(c, c->num_inputs() - 1)
                  : absl::OkStatus();
}

// All ops know the same rules.
constexpr char kRuleAttr[] =
    "rule: {'adagrad', 'ftrl', 'gradient_momentum', 'gradient_nesterov', "
    "'momentum', 'nesterov', 'rowwise_adagrad', 'sgd'}";

REGISTER_OP("Syncrep>ApplyRule")
    .Input("var: Ref(T)")
    .Input("slots: Ref(num_slots * Tslot)")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T")
    .Attr(kRuleAttr)
    .Attr("num_slots: int >= 0")
    .Attr("num_numbers: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .SetShapeFn(DenseShape</*kIsResource=*/false>)
    .Doc(
        "Updates a ref variable by an optimizer's rule: see "
        "tfs.ops.apply_rule.");

REGISTER_OP("Syncrep>SparseApplyRule")
    .Input("var: Ref(T)")
    .Input("slots: Ref(num_slots * Tslot)")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Attr(kRuleAttr)
    .Attr("num_slots: int >= 0")
    .Attr("num_numbers: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .SetShapeFn(SparseShape</*kIsResource=*/false>)
    .Doc(
        "Updates rows of a ref variable by a rule: see "
        "tfs.ops.sparse_apply_rule.");

REGISTER_OP("Syncrep>ResourceApplyRule")
    .Input("var: resource")
    .Input("slots: num_slots * resource")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T")
    .Input("rounding_count: num_rounding_counts * resource")
    .Attr(kRuleAttr)
    .Attr("num_slots: int >= 0")
    .Attr("num_numbers: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("num_rounding_counts: int >= 0 = 0")
    .Attr("rounding_seed: int = 0")
    .Attr("first_row: int >= 0 = 0")
    .Attr("row_stride: int >= 1 = 1")
    .SetShapeFn(RoundedShape<DenseShape</*kIsResource=*/true>>)
    .Doc(
        "Updates a variable by an optimizer's rule: see "
        "tfs.ops.resource_apply_rule.");

REGISTER_OP("Syncrep>ResourceSparseApplyRule")
    .Input("var: resource")
    .Input("slots: num_slots * resource")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Input("rounding_count: num_rounding_counts * resource")
    .Attr(kRuleAttr)
    .Attr("num_slots: int >= 0")
    .Attr("num_numbers: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .Attr("num_rounding_counts: int >= 0 = 0")
    .Attr("rounding_seed: int = 0")
    .Attr("first_row: int >= 0 = 0")
    .Attr("row_stride: int >= 1 = 1")
    .SetShapeFn(RoundedShape<SparseShape</*kIsResource=*/true>>)
    .Doc(
        "Updates rows of a variable by a rule: see "
        "tfs.ops.resource_sparse_apply_rule.");

}  // namespace
}  // namespace tf_syncrep
