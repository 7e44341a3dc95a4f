// Shape functions that ops of several kinds have, and parts of others.

#ifndef TF_SYNCREP_CC_OPS_COMMON_SHAPES_H_
#define TF_SYNCREP_CC_OPS_COMMON_SHAPES_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_syncrep {

inline absl::Status ScalarOutputs(
    tensorflow::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(i, c->Scalar());
  }
  return absl::OkStatus();
}

inline absl::Status VectorOutputs(
    tensorflow::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(i, c->UnknownShapeOfRank(1));
  }
  return absl::OkStatus();
}

// All inputs are the ids of features. There is a vector for each of num_shards
// shards, and then, for each feature, an output of its ids' shape.
inline absl::Status ShardsAndPlaces(
    tensorflow::shape_inference::InferenceContext* c) {
  TF_RETURN_IF_ERROR(VectorOutputs(c));
  const int num_shards = c->num_outputs() - c->num_inputs();
  for (int feature = 0; feature < c->num_inputs(); ++feature) {
    c->set_output(num_shards + feature, c->input(feature));
  }
  return absl::OkStatus();
}

// The shape that is known of what an input is a handle of.
inline tensorflow::shape_inference::ShapeHandle HandleShape(
    tensorflow::shape_inference::InferenceContext* c, int input) {
  const auto* handle_data = c->input_handle_shapes_and_types(input);
  return handle_data == nullptr || handle_data->empty()
             ? c->UnknownShape()
             : (*handle_data)[0].shape;
}

// The op's attribute "shape".
inline absl::Status ShapeAttr(tensorflow::shape_inference::InferenceContext* c,
                              tensorflow::shape_inference::ShapeHandle* shape) {
  tensorflow::PartialTensorShape attr;
  TF_RETURN_IF_ERROR(c->GetAttr("shape", &attr));
  return c->MakeShapeFromPartialTensorShape(attr, shape);
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_COMMON_SHAPES_H_
