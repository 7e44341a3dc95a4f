// Declares the ops that update a variable by a rule: attributes, shapes,
// documentation.

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/lib/rules/rules.h"
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
  for (int i = 0; i < inputs->num_powers(); ++i) {
    TF_RETURN_IF_ERROR(CheckOneElement(
        c, inputs->powers[i], VariableShape<kIsResource>(c, inputs->power(i))));
  }
  for (int i = 0; i < inputs->num_numbers(); ++i) {
    TF_RETURN_IF_ERROR(
        CheckRank(c, inputs->info->numbers[i], inputs->number(i), 0, "scalar"));
  }
  return absl::OkStatus();
}

// Checks the count of updates, if there is one behind the other inputs, and
// gives the ops that return var their output.
absl::Status FinishShapes(InferenceContext* c, int num_inputs,
                          ShapeHandle shape) {
  TF_RETURN_IF_ERROR(CheckNumRoundingCounts(c->num_inputs() - num_inputs));
  if (c->num_inputs() > num_inputs) {
    TF_RETURN_IF_ERROR(CheckOneElement(
        c, kRoundingCount, VariableShape</*kIsResource=*/true>(c, num_inputs)));
  }
  if (c->num_outputs() > 0) {
    c->set_output(0, shape);
  }
  return absl::OkStatus();
}

template <bool kIsResource>
absl::Status DenseShape(InferenceContext* c) {
  RuleInputs inputs;
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(CheckVariables<kIsResource>(c, &inputs, &shape));
  TF_RETURN_IF_ERROR(MergeShape(c, "grad", c->input(inputs.grad()), &shape));
  return FinishShapes(c, inputs.grad() + 1, shape);
}

template <bool kIsResource>
absl::Status SparseShape(InferenceContext* c) {
  RuleInputs inputs;
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(CheckVariables<kIsResource>(c, &inputs, &shape));
  TF_RETURN_IF_ERROR(
      CheckSparseShapes(c, inputs.grad(), inputs.indices(), shape));
  return FinishShapes(c, inputs.indices() + 1, shape);
}

// All ops that take the name of a rule know the same ones.
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
    .SetShapeFn(DenseShape</*kIsResource=*/true>)
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
    .SetShapeFn(SparseShape</*kIsResource=*/true>)
    .Doc(
        "Updates rows of a variable by a rule: see "
        "tfs.ops.resource_sparse_apply_rule.");

// AdamAsync's ops have the names and the inputs of DeepRec's. Those with a
// count of updates are ops of their own.
#define TF_SYNCREP_REGISTER_ADAM_ASYNC(NAME, VAR, SLOT) \
  REGISTER_OP(NAME)                                     \
      .Input("var: " VAR)                               \
      .Input("m: " SLOT)                                \
      .Input("v: " SLOT)                                \
      .Input("beta1_power: " SLOT)                      \
      .Input("beta2_power: " SLOT)                      \
      .Input("lr: Tslot")                               \
      .Input("beta1: Tslot")                            \
      .Input("beta2: Tslot")                            \
      .Input("epsilon: Tslot")                          \
      .Input("grad: T")                                 \
      .Attr("T: {half, bfloat16, float, double}")       \
      .Attr("Tslot: {float, double} = DT_FLOAT")

#define TF_SYNCREP_REGISTER_DENSE(NAME, VAR, SLOT) \
  TF_SYNCREP_REGISTER_ADAM_ASYNC(NAME, VAR, SLOT)  \
      .Attr("use_locking: bool = false")           \
      .Attr("use_nesterov: bool = false")

#define TF_SYNCREP_REGISTER_SPARSE(NAME, VAR, SLOT) \
  TF_SYNCREP_REGISTER_ADAM_ASYNC(NAME, VAR, SLOT)   \
      .Input("indices: Tindices")                   \
      .Attr("Tindices: {int32, int64}")             \
      .Attr("use_locking: bool = false")            \
      .Attr("use_nesterov: bool = false")           \
      .Attr("apply_sparse_rmsprop: bool = false")   \
      .Attr("rmsprop_momentum: float = -1.0")       \
      .Attr("validate_indices: bool = true")        \
      .Attr("count_empty: bool = false")

TF_SYNCREP_REGISTER_DENSE("ApplyAdamAsync", "Ref(T)", "Ref(Tslot)")
    .Output("out: Ref(T)")
    .SetShapeFn(DenseShape</*kIsResource=*/false>)
    .Doc(
        "Updates a ref variable by Adam with powers of its own: see "
        "tfs.ops.apply_adam_async.");

TF_SYNCREP_REGISTER_SPARSE("SparseApplyAdamAsync", "Ref(T)", "Ref(Tslot)")
    .Output("out: Ref(T)")
    .SetShapeFn(SparseShape</*kIsResource=*/false>)
    .Doc(
        "Updates rows of a ref variable by Adam: see "
        "tfs.ops.sparse_apply_adam_async.");

TF_SYNCREP_REGISTER_DENSE("ResourceApplyAdamAsync", "resource", "resource")
    .SetShapeFn(DenseShape</*kIsResource=*/true>)
    .Doc(
        "Updates a variable by Adam with powers of its own: see "
        "tfs.ops.resource_apply_adam_async.");

TF_SYNCREP_REGISTER_DENSE("Syncrep>ResourceApplyAdamAsyncRounded", "resource",
                          "resource")
    .Input("rounding_count: resource")
    .Attr("rounding_seed: int = 0")
    .Attr("first_row: int >= 0 = 0")
    .Attr("row_stride: int >= 1 = 1")
    .SetShapeFn(DenseShape</*kIsResource=*/true>)
    .Doc(
        "Updates a variable as ResourceApplyAdamAsync does, and rounds it "
        "stochastically: see tfs.ops.StochasticRounding.");

TF_SYNCREP_REGISTER_SPARSE("ResourceSparseApplyAdamAsync", "resource",
                           "resource")
    .SetShapeFn(SparseShape</*kIsResource=*/true>)
    .Doc(
        "Updates rows of a variable by Adam: see "
        "tfs.ops.resource_sparse_apply_adam_async.");

TF_SYNCREP_REGISTER_SPARSE("Syncrep>ResourceSparseApplyAdamAsyncRounded",
                           "resource", "resource")
    .Input("rounding_count: resource")
    .Attr("rounding_seed: int = 0")
    .Attr("first_row: int >= 0 = 0")
    .Attr("row_stride: int >= 1 = 1")
    .SetShapeFn(SparseShape</*kIsResource=*/true>)
    .Doc(
        "Updates rows of a variable as ResourceSparseApplyAdamAsync does, and "
        "rounds them stochastically: see tfs.ops.StochasticRounding.");

#undef TF_SYNCREP_REGISTER_SPARSE
#undef TF_SYNCREP_REGISTER_DENSE
#undef TF_SYNCREP_REGISTER_ADAM_ASYNC

}  // namespace
}  // namespace tf_syncrep
