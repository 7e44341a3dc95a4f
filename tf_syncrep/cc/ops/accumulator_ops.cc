// Declares the accumulator ops: attributes, shapes, documentation.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeAndType;
using tensorflow::shape_inference::ShapeHandle;

// Sets the output to a scalar handle that knows the shape of the gradients.
absl::Status AccumulatorShape(InferenceContext* c) {
  DataType dtype;
  PartialTensorShape shape;
  TF_RETURN_IF_ERROR(c->GetAttr("dtype", &dtype));
  TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
  ShapeHandle handle;
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shape, &handle));
  c->set_output(0, c->Scalar());
  c->set_output_handle_shapes_and_types(
      0, std::vector<ShapeAndType>{{handle, dtype}});
  return absl::OkStatus();
}

// The accumulator's shape of gradients, if the graph tells it.
ShapeHandle GradientShape(InferenceContext* c) {
  const auto* handle_data = c->input_handle_shapes_and_types(0);
  if (handle_data == nullptr || handle_data->empty()) {
    return c->UnknownShape();
  }
  return (*handle_data)[0].shape;
}

absl::Status CheckScalars(InferenceContext* c, int first, int last) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  for (int i = first; i <= last; ++i) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  }
  return absl::OkStatus();
}

// The kernel refuses a gradient of another shape, with the messages of
// TensorFlow's accumulators.
absl::Status ApplyShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckScalars(c, 1, 1));
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

template <int kLastScalar>
absl::Status TakeDenseShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckScalars(c, 1, kLastScalar));
  c->set_output(0, GradientShape(c));
  return absl::OkStatus();
}

template <int kLastScalar>
absl::Status TakeSparseShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckScalars(c, 1, kLastScalar));
  c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
  // The gradient may have more dimensions than the accumulator's shape.
  ShapeHandle values;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->UnknownShape(), 1, &values));
  c->set_output(1, values);
  c->set_output(2, c->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

absl::Status SetStepShape(InferenceContext* c) { return CheckScalars(c, 1, 1); }

absl::Status ReadShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckScalars(c, 1, 0));
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(i, c->Scalar());
  }
  return absl::OkStatus();
}

REGISTER_OP("Syncrep>DenseAccumulator")
    .Output("handle: resource")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("shape: shape")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("reduction_type: {'MEAN', 'SUM'} = 'MEAN'")
    .Attr("mode: {'STEP', 'ROUND'} = 'STEP'")
    .Attr("counted: bool = false")
    .SetIsStateful()
    .SetShapeFn(AccumulatorShape)
    .Doc(R"doc(
Makes, or finds by its shared name, an accumulator of dense gradients.

With mode STEP it works like TensorFlow's ResourceConditionalAccumulator: each
gradient comes with the step at which it was computed, and counts unless that is below
the accumulator's own step, which begins at 0. AccumulatorTakeDense waits for enough
gradients, takes all of them, and advances the step by one.

With mode ROUND each gradient comes with its round, and the accumulator holds one
round. A gradient of an older round is dropped; a gradient of a newer round replaces
all that are held. AccumulatorTakeRoundDense takes the gradients of a round.

Gradients are summed in their order of arrival, in float for half and bfloat16.

handle: Handle of the accumulator.
dtype: The dtype of the gradients.
shape: The shape of the gradients, as far as it is known. All gradients that are held at
  one time have the same shape.
container: Container of the accumulator; the default one if empty.
shared_name: Name by which others find the same accumulator. It is an error if an
  accumulator with other attributes has this name.
reduction_type: MEAN: the sum divided by the number of gradients. SUM: the sum.
mode: What the number that comes with each gradient means.
counted: Whether the accumulator lives as long as the handles that the op returns on
  its task, instead of as long as the task. Without a shared name each call then makes
  a new one.
)doc");

REGISTER_OP("Syncrep>SparseAccumulator")
    .Output("handle: resource")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("shape: shape")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("reduction_type: {'MEAN', 'SUM', 'CMEAN'} = 'MEAN'")
    .Attr("mode: {'STEP', 'ROUND'} = 'STEP'")
    .Attr("counted: bool = false")
    .SetIsStateful()
    .SetShapeFn(AccumulatorShape)
    .Doc(R"doc(
Makes, or finds by its shared name, an accumulator of sparse gradients.

It is like DenseAccumulator, but gradients are given as rows and their indices. The
time of a push depends on the gradient's own rows, however many were pushed before;
the time of a take is linear in all rows that were pushed.

handle: Handle of the accumulator.
dtype: The dtype of the gradients.
shape: The shape of the variable, as far as it is known; its first dimension bounds the
  indices. Empty if nothing is known.
container: Container of the accumulator; the default one if empty.
shared_name: Name by which others find the same accumulator. It is an error if an
  accumulator with other attributes has this name.
reduction_type: MEAN: each row's sum divided by the number of gradients that
  contain the row. CMEAN: divided by the number of all gradients, which is what
  the mean of dense gradients does. SUM: the sum.
mode: What the number that comes with each gradient means; see DenseAccumulator.
counted: Whether the accumulator lives as long as the handles that the op returns on
  its task, instead of as long as the task. Without a shared name each call then makes
  a new one.
)doc");

REGISTER_OP("Syncrep>AccumulatorApplyDense")
    .Input("handle: resource")
    .Input("local_step: int64")
    .Input("gradient: dtype")
    .Output("accepted: bool")
    .Attr("dtype: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn(ApplyShape)
    .Doc(R"doc(
Offers a dense gradient to an accumulator.

handle: Handle of a DenseAccumulator.
local_step: Scalar: the step at which the gradient was computed; with mode ROUND
  its round.
gradient: The gradient.
accepted: Scalar: false if the gradient was dropped, being too old.
)doc");

REGISTER_OP("Syncrep>AccumulatorApplySparse")
    .Input("handle: resource")
    .Input("local_step: int64")
    .Input("gradient_indices: Tindices")
    .Input("gradient_values: dtype")
    .Input("gradient_shape: int64")
    .Output("accepted: bool")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("Tindices: {int32, int64} = DT_INT64")
    .Attr("has_known_shape: bool")
    .SetIsStateful()
    .SetShapeFn(ApplyShape)
    .Doc(R"doc(
Offers a sparse gradient to an accumulator.

handle: Handle of a SparseAccumulator.
local_step: Scalar: the step at which the gradient was computed; with mode ROUND
  its round.
gradient_indices: Vector: the row of the variable to which each row of gradient_values
  belongs, in any order. Equal rows are added up.
gradient_values: The rows, of shape [number of indices] + shape[1:].
gradient_shape: Vector: the shape of the variable. Ignored without has_known_shape.
accepted: Scalar: false if the gradient was dropped, being too old.
has_known_shape: Whether gradient_shape is to be checked.
)doc");

REGISTER_OP("Syncrep>AccumulatorTakeDense")
    .Input("handle: resource")
    .Input("num_required: int32")
    .Output("gradient: dtype")
    .Attr("dtype: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn(TakeDenseShape</*kLastScalar=*/1>)
    .Doc(R"doc(
Waits for enough dense gradients, then takes all that are held.

Advances the accumulator's step by one. Takes are served in order.

handle: Handle of a DenseAccumulator with mode STEP.
num_required: Scalar: how many gradients to wait for; at least 1.
gradient: The reduced gradient.
)doc");

REGISTER_OP("Syncrep>AccumulatorTakeSparse")
    .Input("handle: resource")
    .Input("num_required: int32")
    .Output("indices: int64")
    .Output("values: dtype")
    .Output("shape: int64")
    .Attr("dtype: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn(TakeSparseShape</*kLastScalar=*/1>)
    .Doc(R"doc(
Waits for enough sparse gradients, then takes all that are held.

Advances the accumulator's step by one. Takes are served in order.

handle: Handle of a SparseAccumulator with mode STEP.
num_required: Scalar: how many gradients to wait for; at least 1.
indices: Vector: the rows that any gradient contained, ascending, each once.
values: The reduced rows.
shape: Vector: the shape of the variable. Its first dimension is -1 if the accumulator
  does not know it.
)doc");

REGISTER_OP("Syncrep>AccumulatorTakeRoundDense")
    .Input("handle: resource")
    .Input("round: int64")
    .Input("num_gradients: int64")
    .Output("gradient: dtype")
    .Attr("dtype: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn(TakeDenseShape</*kLastScalar=*/2>)
    .Doc(R"doc(
Takes the dense gradients of a round, all of which must have arrived.

Gradients of this round and of older ones that arrive later are dropped. If the
accumulator holds another number of gradients, or another round, the op fails and
changes nothing.

handle: Handle of a DenseAccumulator with mode ROUND.
round: Scalar: the round.
num_gradients: Scalar: how many gradients the round has; at least 1.
gradient: The reduced gradient.
)doc");

REGISTER_OP("Syncrep>AccumulatorTakeRoundSparse")
    .Input("handle: resource")
    .Input("round: int64")
    .Input("num_gradients: int64")
    .Output("indices: int64")
    .Output("values: dtype")
    .Output("shape: int64")
    .Attr("dtype: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn(TakeSparseShape</*kLastScalar=*/2>)
    .Doc(R"doc(
Takes the sparse gradients of a round, all of which must have arrived.

Gradients of this round and of older ones that arrive later are dropped. If the
accumulator holds another number of gradients, or another round, the op fails and
changes nothing.

handle: Handle of a SparseAccumulator with mode ROUND.
round: Scalar: the round.
num_gradients: Scalar: how many gradients the round has; at least 1.
indices: Vector: the rows that any gradient contained, ascending, each once.
values: The reduced rows.
shape: Vector: the shape of the variable. Its first dimension is -1 if the accumulator
  does not know it.
)doc");

REGISTER_OP("Syncrep>AccumulatorSetGlobalStep")
    .Input("handle: resource")
    .Input("new_global_step: int64")
    .SetIsStateful()
    .SetShapeFn(SetStepShape)
    .Doc(R"doc(
Sets an accumulator's step, or its round, and discards gradients of older ones.

With mode ROUND gradients of any other round are discarded. The step may go back.

handle: Handle of an accumulator.
new_global_step: Scalar: the step or round.
)doc");

REGISTER_OP("Syncrep>AccumulatorNumAccumulated")
    .Input("handle: resource")
    .Output("num_accumulated: int32")
    .SetIsStateful()
    .SetShapeFn(ReadShape)
    .Doc(R"doc(
Returns how many gradients an accumulator holds.

handle: Handle of an accumulator.
num_accumulated: Scalar: the number of gradients.
)doc");

REGISTER_OP("Syncrep>AccumulatorStats")
    .Input("handle: resource")
    .Output("step: int64")
    .Output("held: int64")
    .Output("pushed: int64")
    .Output("accepted: int64")
    .Output("stale: int64")
    .Output("voided: int64")
    .Output("taken: int64")
    .Output("takes: int64")
    .Output("bytes: int64")
    .SetIsStateful()
    .SetShapeFn(ReadShape)
    .Doc(R"doc(
Returns what has become of an accumulator's gradients since it was made.

At any time pushed = accepted + stale, and accepted = taken + voided + held. A
gradient that was refused with an error is not counted.

handle: Handle of an accumulator.
step: Scalar: the accumulator's step, or its round.
held: Scalar: gradients that are held now.
pushed: Scalar: gradients that arrived.
accepted: Scalar: gradients that were not dropped on arrival.
stale: Scalar: gradients dropped on arrival, being too old.
voided: Scalar: gradients discarded later, because of a newer round or step.
taken: Scalar: gradients that were taken.
takes: Scalar: how many takes got gradients.
bytes: Scalar: bytes of memory that the held gradients take now.
)doc");

}  // namespace
}  // namespace tf_syncrep
