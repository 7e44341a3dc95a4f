// The shape functions of the ops that update a variable by a rule.

#ifndef TF_SYNCREP_CC_OPS_RULE_SHAPES_H_
#define TF_SYNCREP_CC_OPS_RULE_SHAPES_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/lib/rules/rules.h"
#include "tf_syncrep/cc/ops/rule_inputs.h"
#include "tf_syncrep/cc/ops/update_shapes.h"

namespace tf_syncrep {

// The shape of a rowwise rule's slot: the first dimension of var, and 1 for all
// others.
inline tensorflow::shape_inference::ShapeHandle RowSlotShape(
    tensorflow::shape_inference::InferenceContext* c,
    tensorflow::shape_inference::ShapeHandle var) {
  if (!c->RankKnown(var)) {
    return c->UnknownShape();
  }
  std::vector<tensorflow::shape_inference::DimensionHandle> dims(c->Rank(var),
                                                                 c->MakeDim(1));
  if (!dims.empty()) {
    dims[0] = c->Dim(var, 0);
  }
  return c->MakeShape(dims);
}

// Checks all inputs except the gradient; `shape` becomes var's shape.
template <bool kIsResource>
absl::Status CheckVariables(tensorflow::shape_inference::InferenceContext* c,
                            RuleInputs* inputs,
                            tensorflow::shape_inference::ShapeHandle* shape) {
  TF_RETURN_IF_ERROR(CheckSlotType(*c));
  TF_RETURN_IF_ERROR(RuleInputs::Find(*c, inputs));
  *shape = VariableShape<kIsResource>(c, kRuleVar);
  for (int i = 0; i < inputs->num_slots(); ++i) {
    const tensorflow::shape_inference::ShapeHandle slot =
        VariableShape<kIsResource>(c, inputs->slot(i));
    const char* name = inputs->info->slots[i];
    if (inputs->info->is_rowwise) {
      tensorflow::shape_inference::ShapeHandle expected =
          RowSlotShape(c, *shape);
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
inline absl::Status FinishShapes(
    tensorflow::shape_inference::InferenceContext* c, int num_inputs,
    tensorflow::shape_inference::ShapeHandle shape) {
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
absl::Status DenseShape(tensorflow::shape_inference::InferenceContext* c) {
  RuleInputs inputs;
  tensorflow::shape_inference::ShapeHandle shape;
  TF_RETURN_IF_ERROR(CheckVariables<kIsResource>(c, &inputs, &shape));
  TF_RETURN_IF_ERROR(MergeShape(c, "grad", c->input(inputs.grad()), &shape));
  return FinishShapes(c, inputs.grad() + 1, shape);
}

template <bool kIsResource>
absl::Status SparseShape(tensorflow::shape_inference::InferenceContext* c) {
  RuleInputs inputs;
  tensorflow::shape_inference::ShapeHandle shape;
  TF_RETURN_IF_ERROR(CheckVariables<kIsResource>(c, &inputs, &shape));
  TF_RETURN_IF_ERROR(
      CheckSparseShapes(c, inputs.grad(), inputs.indices(), shape));
  return FinishShapes(c, inputs.indices() + 1, shape);
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_RULE_SHAPES_H_
