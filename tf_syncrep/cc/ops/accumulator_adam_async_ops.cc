// Declares the op that applies what an accumulator holds by AdamAsync.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/ops/adam_async_shapes.h"

namespace tf_syncrep {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The shape of the gradient is what the accumulator knows of it.
absl::Status TakeRoundDenseShape(InferenceContext* c) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(CheckVariables</*kIsResource=*/true>(c, &shape));
  TF_RETURN_IF_ERROR(MergeShape(
      c, "grad", VariableShape</*kIsResource=*/true>(c, kGrad), &shape));
  ShapeHandle unused;
  for (int input = kGrad; input < c->num_inputs(); ++input) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(input), 0, &unused));
  }
  return absl::OkStatus();
}

// The accumulator takes the place that the gradient has in the AdamAsync ops,
// so that their kernels can share code.
REGISTER_OP("Syncrep>AccumulatorTakeRoundApplyAdamAsyncDense")
    .Input("var: resource")
    .Input("m: resource")
    .Input("v: resource")
    .Input("beta1_power: resource")
    .Input("beta2_power: resource")
    .Input("lr: Tslot")
    .Input("beta1: Tslot")
    .Input("beta2: Tslot")
    .Input("epsilon: Tslot")
    .Input("handle: resource")
    .Input("round: int64")
    .Input("num_gradients: int64")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("use_locking: bool = false")
    .Attr("use_nesterov: bool = false")
    .SetIsStateful()
    .SetShapeFn(TakeRoundDenseShape)
    .Doc(
        "Takes a round and applies its mean: see "
        "tfs.ops.accumulator_take_round_apply_adam_async_dense.");

}  // namespace
}  // namespace tf_syncrep
