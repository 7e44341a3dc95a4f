#include "tf_syncrep/cc/ops/rule_shapes.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tf_syncrep/cc/ops/common_shapes.h"
#include "tf_syncrep/cc/ops/rule_inputs.h"

namespace tf_syncrep {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The shape of a variable, as far as it is known when the graph is built.
template <bool kIsResource>
ShapeHandle VariableShape(InferenceContext* c, int input) {
  return kIsResource ? HandleShape(c, input) : c->input(input);
}

// Merges the shape of the input `name` into `shape`, which is var's shape or,
// for the gradient's rows, follows from it.
absl::Status MergeShape(InferenceContext* c, absl::string_view name,
                        ShapeHandle input_shape, ShapeHandle* shape) {
  ShapeHandle merged;
  if (!c->Merge(*shape, input_shape, &merged).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must have shape ", c->DebugString(*shape),
        ", as var has it, but has shape ", c->DebugString(input_shape)));
  }
  *shape = merged;
  return absl::OkStatus();
}

absl::Status CheckOneElement(InferenceContext* c, absl::string_view name,
                             ShapeHandle shape) {
  const DimensionHandle elements = c->NumElements(shape);
  if (c->ValueKnown(elements) && c->Value(elements) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must have exactly one element, but has shape ",
                     c->DebugString(shape)));
  }
  return absl::OkStatus();
}

absl::Status CheckRank(InferenceContext* c, absl::string_view name, int input,
                       int rank, const char* rule) {
  const ShapeHandle shape = c->input(input);
  if (c->RankKnown(shape) && c->Rank(shape) != rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must be a ", rule, ", but has shape ", c->DebugString(shape)));
  }
  return absl::OkStatus();
}

absl::Status CheckSparseShapes(InferenceContext* c, int grad, int indices,
                               ShapeHandle shape) {
  if (c->RankKnown(shape) && c->Rank(shape) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("var must have at least rank 1 for a sparse gradient, but "
                     "has shape ",
                     c->DebugString(shape)));
  }
  TF_RETURN_IF_ERROR(CheckRank(c, "indices", indices, 1, "vector"));
  if (c->RankKnown(shape)) {
    ShapeHandle rows;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(indices), 1, &rows));
    ShapeHandle expected;
    TF_RETURN_IF_ERROR(c->ReplaceDim(shape, 0, c->Dim(rows, 0), &expected));
    TF_RETURN_IF_ERROR(MergeShape(c, "grad", c->input(grad), &expected));
  }
  return absl::OkStatus();
}

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

}  // namespace

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

template absl::Status DenseShape<false>(InferenceContext*);
template absl::Status DenseShape<true>(InferenceContext*);
template absl::Status SparseShape<false>(InferenceContext*);
template absl::Status SparseShape<true>(InferenceContext*);

}  // namespace tf_syncrep
