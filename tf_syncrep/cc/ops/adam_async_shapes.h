// What shape functions of ops with the inputs of AdamAsync share.

#ifndef TF_SYNCREP_CC_OPS_ADAM_ASYNC_SHAPES_H_
#define TF_SYNCREP_CC_OPS_ADAM_ASYNC_SHAPES_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"

namespace tf_syncrep {

// The shape of a variable, as far as it is known when the graph is built.
template <bool kIsResource>
tensorflow::shape_inference::ShapeHandle VariableShape(
    tensorflow::shape_inference::InferenceContext* c, AdamAsyncInput input) {
  if (!kIsResource) {
    return c->input(input);
  }
  const auto* handle_data = c->input_handle_shapes_and_types(input);
  if (handle_data == nullptr || handle_data->empty()) {
    return c->UnknownShape();
  }
  return (*handle_data)[0].shape;
}

inline absl::Status CheckSlotType(
    tensorflow::shape_inference::InferenceContext* c) {
  tensorflow::DataType dtype;
  tensorflow::DataType slot_dtype;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &dtype));
  TF_RETURN_IF_ERROR(c->GetAttr("Tslot", &slot_dtype));
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

// Merges the shape of `input` into `shape`, which is that of var or, for the
// gradient's rows, follows from it.
inline absl::Status MergeShape(
    tensorflow::shape_inference::InferenceContext* c, AdamAsyncInput input,
    tensorflow::shape_inference::ShapeHandle input_shape,
    tensorflow::shape_inference::ShapeHandle* shape) {
  tensorflow::shape_inference::ShapeHandle merged;
  if (!c->Merge(*shape, input_shape, &merged).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kAdamAsyncInputNames[input], " must have shape ",
                     c->DebugString(*shape), ", as var has it, but has shape ",
                     c->DebugString(input_shape)));
  }
  *shape = merged;
  return absl::OkStatus();
}

inline absl::Status CheckRank(tensorflow::shape_inference::InferenceContext* c,
                              AdamAsyncInput input, int rank,
                              const char* rule) {
  const tensorflow::shape_inference::ShapeHandle shape = c->input(input);
  if (c->RankKnown(shape) && c->Rank(shape) != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(kAdamAsyncInputNames[input], " must be a ", rule,
                     ", but has shape ", c->DebugString(shape)));
  }
  return absl::OkStatus();
}

// Merges the shapes of var, m and v into `shape`, and checks those of powers
// and hyper-parameters.
template <bool kIsResource>
absl::Status CheckVariables(tensorflow::shape_inference::InferenceContext* c,
                            tensorflow::shape_inference::ShapeHandle* shape) {
  TF_RETURN_IF_ERROR(CheckSlotType(c));
  *shape = VariableShape<kIsResource>(c, kVar);
  for (const AdamAsyncInput slot : {kM, kV}) {
    TF_RETURN_IF_ERROR(
        MergeShape(c, slot, VariableShape<kIsResource>(c, slot), shape));
  }
  for (const AdamAsyncInput power : {kBeta1Power, kBeta2Power}) {
    const tensorflow::shape_inference::ShapeHandle power_shape =
        VariableShape<kIsResource>(c, power);
    const tensorflow::shape_inference::DimensionHandle elements =
        c->NumElements(power_shape);
    if (c->ValueKnown(elements) && c->Value(elements) != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(kAdamAsyncInputNames[power],
                       " must have exactly one element, but has shape ",
                       c->DebugString(power_shape)));
    }
  }
  for (const AdamAsyncInput scalar : {kLr, kBeta1, kBeta2, kEpsilon}) {
    TF_RETURN_IF_ERROR(CheckRank(c, scalar, 0, "scalar"));
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_ADAM_ASYNC_SHAPES_H_
