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
  TF_RETURN_IF_ERROR(CheckSlotType(c));
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
  return CheckSparseGradient(c, inputs.grad(), inputs.indices(), shape);
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
    .Doc(R"doc(
Updates a ref variable by an optimizer's rule.

The rules are those of Syncrep>ResourceApplyRule. The whole update is atomic with
respect to other ops of these on the same variables.

var: The variable.
slots: The rule's slots.
numbers: Scalars: the rule's numbers. Of ftrl, lr must be above 0.
grad: The gradient, of the shape of var.
rule: The name of the rule.
Tslot: double for a double variable, float for any other.
)doc");

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
    .Doc(R"doc(
Updates the rows of a ref variable that a sparse gradient touches, by a rule.

Row indices[i] of var and its slots is updated with row i of grad by the formula
of Syncrep>ResourceApplyRule; other rows stay as they are. Rows that occur several
times are summed first, in order of occurrence, and applied once. Updates of the
same variables may run at the same time; each row is updated atomically.

var: The variable, of at least rank 1.
slots: The rule's slots.
numbers: Scalars: the rule's numbers. Of ftrl, lr must be above 0.
grad: The gradient's rows, of shape [number of indices] + var.shape[1:].
indices: Vector: which row of var each row of grad belongs to.
rule: The name of the rule.
Tslot: double for a double variable, float for any other.
use_locking: If true, the whole update excludes others on the same variables.
)doc");

REGISTER_OP("Syncrep>ResourceApplyRule")
    .Input("var: resource")
    .Input("slots: num_slots * resource")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T")
    .Attr(kRuleAttr)
    .Attr("num_slots: int >= 0")
    .Attr("num_numbers: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .SetShapeFn(DenseShape</*kIsResource=*/true>)
    .Doc(R"doc(
Updates a resource variable by an optimizer's rule.

All arithmetic is in Tslot, element by element. The op takes the slots of a rule
(here before the semicolon), then its numbers (after it), in this order:

    adagrad (accumulator; lr, epsilon):
      accumulator += grad * grad
      var -= lr * grad / sqrt(accumulator + epsilon)
    rowwise_adagrad (accumulator; lr, epsilon), for each row var[i]:
      accumulator += mean(grad * grad)
      var -= lr / (sqrt(accumulator) + epsilon) * grad
    ftrl (accumulator, linear; lr, lr_power, l1, l2, l2_shrinkage, beta):
      sum = accumulator + grad * grad
      sigma = (sum ** -lr_power - accumulator ** -lr_power) / lr
      linear += grad + 2 * l2_shrinkage * var - sigma * var
      var = (clip(linear, -l1, l1) - linear)
          / (sum ** -lr_power / lr + 2 * l2 + beta / lr)
      accumulator = sum
    sgd (no slots; lr):
      var -= lr * grad
    momentum (momentum; lr, momentum), where m is the slot:
      m = momentum * m - lr * grad
      var += m
    nesterov (momentum; lr, momentum):
      m = momentum * m - lr * grad
      var += momentum * m - lr * grad
    gradient_momentum (momentum; lr, momentum):
      m = momentum * m + grad
      var -= lr * m
    gradient_nesterov (momentum; lr, momentum):
      m = momentum * m + grad
      var -= lr * grad + lr * momentum * m

Slots have the shape of var, but the slot of rowwise_adagrad only its first dimension,
and 1 for all others. The whole update is atomic with respect to other ops on the
same variables that take their locks.

var: Handle of the variable.
slots: Handles of the rule's slots.
numbers: Scalars: the rule's numbers. Of ftrl, lr must be above 0.
grad: The gradient, of the shape of var.
rule: The name of the rule.
Tslot: double for a double variable, float for any other.
)doc");

REGISTER_OP("Syncrep>ResourceSparseApplyRule")
    .Input("var: resource")
    .Input("slots: num_slots * resource")
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
    .SetShapeFn(SparseShape</*kIsResource=*/true>)
    .Doc(R"doc(
Updates the rows of a resource variable that a sparse gradient touches, by a rule.

Row indices[i] of var and its slots is updated with row i of grad by the formula
of Syncrep>ResourceApplyRule; other rows stay as they are. Rows that occur several
times are summed first, in order of occurrence, and applied once. Updates of the
same variables may run at the same time; each row is updated atomically. From then on
reads of var and slots copy (TensorFlow's copy-on-read mode), so that no tensor that
was read before changes.

var: Handle of the variable, of at least rank 1.
slots: Handles of the rule's slots.
numbers: Scalars: the rule's numbers. Of ftrl, lr must be above 0.
grad: The gradient's rows, of shape [number of indices] + var.shape[1:].
indices: Vector: which row of var each row of grad belongs to.
rule: The name of the rule.
Tslot: double for a double variable, float for any other.
use_locking: If true, the whole update excludes others on the same variables.
)doc");

}  // namespace
}  // namespace tf_syncrep
