// What the shape functions of ops that update a variable and its slots share.

#ifndef TF_SYNCREP_CC_OPS_UPDATE_SHAPES_H_
#define TF_SYNCREP_CC_OPS_UPDATE_SHAPES_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"

namespace tf_syncrep {

// The shape of a variable, as far as it is known when the graph is built.
template <bool kIsResource>
tensorflow::shape_inference::ShapeHandle VariableShape(
    tensorflow::shape_inference::InferenceContext* c, int input) {
  if (!kIsResource) {
    return c->input(input);
  }
  const auto* handle_data = c->input_handle_shapes_and_types(input);
  if (handle_data == nullptr || handle_data->empty()) {
    return c->UnknownShape();
  }
  return (*handle_data)[0].shape;
}

// Checks an op's attributes. `Context` is an InferenceContext or an
// OpKernelConstruction.
template <typename Context>
absl::Status CheckSlotType(Context& context) {
  tensorflow::DataType dtype;
  tensorflow::DataType slot_dtype;
  TF_RETURN_IF_ERROR(context.GetAttr("T", &dtype));
  TF_RETURN_IF_ERROR(context.GetAttr("Tslot", &slot_dtype));
  const tensorflow::DataType expected = dtype == tensorflow::DT_DOUBLE
                                            ? tensorflow::DT_DOUBLE
                                            : tensorflow::DT_FLOAT;
  if (slot_dtype != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("Tslot must be ", tensorflow::DataTypeString(expected),
                     " for T = ", tensorflow::DataTypeString(dtype),
                     ", but is ", tensorflow::DataTypeString(slot_dtype)));
  }
  return absl::OkStatus();
}

// Merges the shape of the input `name` into `shape`, which is var's shape or,
// for the gradient's rows, follows from it.
inline absl::Status MergeShape(
    tensorflow::shape_inference::InferenceContext* c, absl::string_view name,
    tensorflow::shape_inference::ShapeHandle input_shape,
    tensorflow::shape_inference::ShapeHandle* shape) {
  tensorflow::shape_inference::ShapeHandle merged;
  if (!c->Merge(*shape, input_shape, &merged).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must have shape ", c->DebugString(*shape),
        ", as var has it, but has shape ", c->DebugString(input_shape)));
  }
  *shape = merged;
  return absl::OkStatus();
}

// Checks a variable that holds one number.
inline absl::Status CheckOneElement(
    tensorflow::shape_inference::InferenceContext* c, absl::string_view name,
    tensorflow::shape_inference::ShapeHandle shape) {
  const tensorflow::shape_inference::DimensionHandle elements =
      c->NumElements(shape);
  if (c->ValueKnown(elements) && c->Value(elements) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must have exactly one element, but has shape ",
                     c->DebugString(shape)));
  }
  return absl::OkStatus();
}

inline absl::Status CheckRank(tensorflow::shape_inference::InferenceContext* c,
                              absl::string_view name, int input, int rank,
                              const char* rule) {
  const tensorflow::shape_inference::ShapeHandle shape = c->input(input);
  if (c->RankKnown(shape) && c->Rank(shape) != rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must be a ", rule, ", but has shape ", c->DebugString(shape)));
  }
  return absl::OkStatus();
}

// Checks the inputs of a sparse gradient for a var of `shape`.
inline absl::Status CheckSparseShapes(
    tensorflow::shape_inference::InferenceContext* c, int grad, int indices,
    tensorflow::shape_inference::ShapeHandle shape) {
  using tensorflow::shape_inference::ShapeHandle;
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

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_UPDATE_SHAPES_H_
