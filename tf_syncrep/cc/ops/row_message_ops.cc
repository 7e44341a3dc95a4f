// Declares the ops of messages that consist of rows and other tensors:
// attributes, shapes, documentation.

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_syncrep {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status MessageShape(InferenceContext* c) {
  int head_rows;
  ShapeHandle rows;
  DimensionHandle num_rows;
  TF_RETURN_IF_ERROR(c->GetAttr("head_rows", &head_rows));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
  TF_RETURN_IF_ERROR(c->Add(c->Dim(rows, 0), head_rows, &num_rows));
  c->set_output(0, c->Matrix(num_rows, c->Dim(rows, 1)));
  return absl::OkStatus();
}

absl::Status PartsShape(InferenceContext* c) {
  int head_rows;
  std::vector<PartialTensorShape> shapes;
  ShapeHandle message;
  DimensionHandle num_rows;
  TF_RETURN_IF_ERROR(c->GetAttr("head_rows", &head_rows));
  TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &message));
  TF_RETURN_IF_ERROR(c->Subtract(c->Dim(message, 0), head_rows, &num_rows));
  if (static_cast<int>(shapes.size()) + 1 != c->num_outputs()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shapes must be of ", c->num_outputs() - 1,
                     " tensors, but are of ", shapes.size()));
  }
  c->set_output(0, c->Matrix(num_rows, c->Dim(message, 1)));
  for (size_t i = 0; i < shapes.size(); ++i) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    c->set_output(static_cast<int>(i) + 1, shape);
  }
  return absl::OkStatus();
}

REGISTER_OP("Syncrep>RowMessage")
    .Input("rows: T")
    .Input("others: Tothers")
    .Output("message: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tothers: list(type) >= 1")
    .Attr("head_rows: int >= 0")
    .SetShapeFn(MessageShape)
    .Doc("Puts tensors before rows: see row_message_ops.row_message.");

REGISTER_OP("Syncrep>RowMessageParts")
    .Input("message: T")
    .Output("rows: T")
    .Output("others: Tothers")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tothers: list(type) >= 1")
    .Attr("shapes: list(shape)")
    .Attr("head_rows: int >= 0")
    .SetShapeFn(PartsShape)
    .Doc("Takes such a message apart: see row_message_ops.row_message_parts.");

}  // namespace
}  // namespace tf_syncrep
