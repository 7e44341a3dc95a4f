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
    .Attr("shapes: list(shape)")
    .Attr("head_rows: int >= 0")
    .SetShapeFn(MessageShape)
    .Doc(R"doc(
Puts tensors before rows.

The op fails as InvalidArgument if the rows are no matrix, if one of the others has another
shape than is said, if they do not fit into the head, or if rows behind it would not begin
at a multiple of 64 bytes.

rows: A matrix. It is copied, unless its op has left room for as many rows in front of it
  and nobody else holds its memory.
others: Numbers or truth values.
message: A matrix with the head before the rows. Each of the others begins in it at a
  multiple of 64 bytes, and zeros are between them.
shapes: Their shapes, which must be known. RowMessageParts takes them for granted.
head_rows: How many rows the head takes up. Ops that read rows, or make gradients of
  them, have an attribute of this name: then they leave room for the head.
)doc");

REGISTER_OP("Syncrep>RowMessageParts")
    .Input("message: T")
    .Output("rows: T")
    .Output("others: Tothers")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tothers: list(type) >= 1")
    .Attr("shapes: list(shape)")
    .Attr("head_rows: int >= 0")
    .SetShapeFn(PartsShape)
    .Doc(R"doc(
Takes a message of rows and other tensors apart.

The op fails as InvalidArgument if the message is no matrix, or has no room for the
others in its head.

message: An output of RowMessage.
rows: Its rows, which share its memory if that is aligned.
others: The other tensors, which are copied, so that nobody else holds the rows' memory.
shapes, head_rows: What RowMessage had.
)doc");

}  // namespace
}  // namespace tf_syncrep
