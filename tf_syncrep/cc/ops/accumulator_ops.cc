// Declares the accumulator ops: attributes, shapes, documentation.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/ops/common_shapes.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeAndType;
using tensorflow::shape_inference::ShapeHandle;

// Sets the output to a scalar handle that knows the shape of the gradients.
absl::Status AccumulatorShape(InferenceContext* c) {
  DataType dtype;
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->GetAttr("dtype", &dtype));
  TF_RETURN_IF_ERROR(ShapeAttr(c, &shape));
  c->set_output(0, c->Scalar());
  c->set_output_handle_shapes_and_types(
      0, std::vector<ShapeAndType>{{shape, dtype}});
  return absl::OkStatus();
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
  return ScalarOutputs(c);
}

template <int kLastScalar>
absl::Status TakeDenseShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckScalars(c, 1, kLastScalar));
  c->set_output(0, HandleShape(c, 0));
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
  return ScalarOutputs(c);
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
    .Doc(
        "Makes or finds an accumulator of dense gradients: see "
        "tfs.ops.dense_accumulator.");

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
    .Doc(
        "Makes or finds an accumulator of sparse gradients: see "
        "tfs.ops.sparse_accumulator.");

REGISTER_OP("Syncrep>AccumulatorApplyDense")
    .Input("handle: resource")
    .Input("local_step: int64")
    .Input("gradient: dtype")
    .Output("accepted: bool")
    .Attr("dtype: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn(ApplyShape)
    .Doc(
        "Offers a dense gradient to an accumulator: see "
        "tfs.ops.accumulator_apply_dense.");

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
    .Doc(
        "Offers a sparse gradient to an accumulator: see "
        "tfs.ops.accumulator_apply_sparse.");

REGISTER_OP("Syncrep>AccumulatorTakeDense")
    .Input("handle: resource")
    .Input("num_required: int32")
    .Output("gradient: dtype")
    .Attr("dtype: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn(TakeDenseShape</*kLastScalar=*/1>)
    .Doc(
        "Waits for dense gradients and takes them: see "
        "tfs.ops.accumulator_take_dense.");

REGISTER_OP("Syncrep>AccumulatorTakeSparse")
    .Input("handle: resource")
    .Input("num_required: int32")
    .Output("indices: int64")
    .Output("values: dtype")
    .Output("shape: int64")
    .Attr("dtype: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn(TakeSparseShape</*kLastScalar=*/1>)
    .Doc(
        "Waits for sparse gradients and takes them: see "
        "tfs.ops.accumulator_take_sparse.");

REGISTER_OP("Syncrep>AccumulatorTakeRoundDense")
    .Input("handle: resource")
    .Input("round: int64")
    .Input("num_gradients: int64")
    .Output("gradient: dtype")
    .Attr("dtype: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn(TakeDenseShape</*kLastScalar=*/2>)
    .Doc(
        "Takes the dense gradients of a round: see "
        "tfs.ops.accumulator_take_round_dense.");

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
    .Doc(
        "Takes the sparse gradients of a round: see "
        "tfs.ops.accumulator_take_round_sparse.");

REGISTER_OP("Syncrep>AccumulatorSetGlobalStep")
    .Input("handle: resource")
    .Input("new_global_step: int64")
    .SetIsStateful()
    .SetShapeFn(SetStepShape)
    .Doc(
        "Sets an accumulator's step, or its round: see "
        "tfs.ops.accumulator_set_global_step.");

REGISTER_OP("Syncrep>AccumulatorNumAccumulated")
    .Input("handle: resource")
    .Output("num_accumulated: int32")
    .SetIsStateful()
    .SetShapeFn(ReadShape)
    .Doc(
        "Counts the gradients that are held: see "
        "tfs.ops.accumulator_num_accumulated.");

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
    .Doc("Counts what has become of gradients: see tfs.ops.accumulator_stats.");

}  // namespace
}  // namespace tf_syncrep
