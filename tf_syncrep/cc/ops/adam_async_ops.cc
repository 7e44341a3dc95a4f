// Declares the AdamAsync ops: attributes, shapes, documentation.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/ops/adam_async_shapes.h"
#include "tf_syncrep/cc/ops/rounding_inputs.h"
#include "tf_syncrep/cc/ops/update_shapes.h"

namespace tf_syncrep {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

template <bool kIsResource>
absl::Status DenseShape(InferenceContext* c) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(CheckVariables<kIsResource>(c, &shape));
  TF_RETURN_IF_ERROR(MergeShape(c, "grad", c->input(kGrad), &shape));
  if (!kIsResource) {
    c->set_output(0, shape);
  }
  return absl::OkStatus();
}

template <bool kIsResource>
absl::Status SparseShape(InferenceContext* c) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(CheckVariables<kIsResource>(c, &shape));
  TF_RETURN_IF_ERROR(CheckSparseShapes(c, kGrad, kIndices, shape));
  if (!kIsResource) {
    c->set_output(0, shape);
  }
  return absl::OkStatus();
}

// Also checks the count of updates, the last input. The ops with DeepRec's
// names have DeepRec's inputs, so that those with a count are ops of their own.
template <absl::Status (*kShape)(InferenceContext*)>
absl::Status RoundedShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(kShape(c));
  return CheckRoundingCountShape(c, c->num_inputs() - 1);
}

REGISTER_OP("ApplyAdamAsync")
    .Input("var: Ref(T)")
    .Input("m: Ref(Tslot)")
    .Input("v: Ref(Tslot)")
    .Input("beta1_power: Ref(Tslot)")
    .Input("beta2_power: Ref(Tslot)")
    .Input("lr: Tslot")
    .Input("beta1: Tslot")
    .Input("beta2: Tslot")
    .Input("epsilon: Tslot")
    .Input("grad: T")
    .Output("out: Ref(T)")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("use_locking: bool = false")
    .Attr("use_nesterov: bool = false")
    .SetShapeFn(DenseShape</*kIsResource=*/false>)
    .Doc(
        "Updates a ref variable by Adam with powers of its own: see "
        "tfs.ops.apply_adam_async.");

REGISTER_OP("SparseApplyAdamAsync")
    .Input("var: Ref(T)")
    .Input("m: Ref(Tslot)")
    .Input("v: Ref(Tslot)")
    .Input("beta1_power: Ref(Tslot)")
    .Input("beta2_power: Ref(Tslot)")
    .Input("lr: Tslot")
    .Input("beta1: Tslot")
    .Input("beta2: Tslot")
    .Input("epsilon: Tslot")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Output("out: Ref(T)")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .Attr("use_nesterov: bool = false")
    .Attr("apply_sparse_rmsprop: bool = false")
    .Attr("rmsprop_momentum: float = -1.0")
    .Attr("validate_indices: bool = true")
    .Attr("count_empty: bool = false")
    .SetShapeFn(SparseShape</*kIsResource=*/false>)
    .Doc(
        "Updates rows of a ref variable by Adam: see "
        "tfs.ops.sparse_apply_adam_async.");

REGISTER_OP("ResourceApplyAdamAsync")
    .Input("var: resource")
    .Input("m: resource")
    .Input("v: resource")
    .Input("beta1_power: resource")
    .Input("beta2_power: resource")
    .Input("lr: Tslot")
    .Input("beta1: Tslot")
    .Input("beta2: Tslot")
    .Input("epsilon: Tslot")
    .Input("grad: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("use_locking: bool = false")
    .Attr("use_nesterov: bool = false")
    .SetShapeFn(DenseShape</*kIsResource=*/true>)
    .Doc(
        "Updates a variable by Adam with powers of its own: see "
        "tfs.ops.resource_apply_adam_async.");

REGISTER_OP("Syncrep>ResourceApplyAdamAsyncRounded")
    .Input("var: resource")
    .Input("m: resource")
    .Input("v: resource")
    .Input("beta1_power: resource")
    .Input("beta2_power: resource")
    .Input("lr: Tslot")
    .Input("beta1: Tslot")
    .Input("beta2: Tslot")
    .Input("epsilon: Tslot")
    .Input("grad: T")
    .Input("rounding_count: resource")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("use_locking: bool = false")
    .Attr("use_nesterov: bool = false")
    .Attr("rounding_seed: int = 0")
    .Attr("first_row: int >= 0 = 0")
    .Attr("row_stride: int >= 1 = 1")
    .SetShapeFn(RoundedShape<DenseShape</*kIsResource=*/true>>)
    .Doc(R"doc(
Updates a variable as ResourceApplyAdamAsync does, and rounds it stochastically.

A half or bfloat16 var is rounded to one of the two neighbours of each new value,
which is computed in float: to the one that is farther from zero with the
probability that is right on average. Random bits are a hash of rounding_seed, of
the count, of the row of the table, which is first_row + i * row_stride for row i
of var, and of the element. Float and double variables, m and v are not rounded.

Errors are those of ResourceApplyAdamAsync; and InvalidArgument if rounding_count
is not an int64 variable of one element. Nothing is written then.

var, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad: as in
  ResourceApplyAdamAsync.
rounding_count: the count of updates, from which each call takes 1.
)doc");

REGISTER_OP("ResourceSparseApplyAdamAsync")
    .Input("var: resource")
    .Input("m: resource")
    .Input("v: resource")
    .Input("beta1_power: resource")
    .Input("beta2_power: resource")
    .Input("lr: Tslot")
    .Input("beta1: Tslot")
    .Input("beta2: Tslot")
    .Input("epsilon: Tslot")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .Attr("use_nesterov: bool = false")
    .Attr("apply_sparse_rmsprop: bool = false")
    .Attr("rmsprop_momentum: float = -1.0")
    .Attr("validate_indices: bool = true")
    .Attr("count_empty: bool = false")
    .SetShapeFn(SparseShape</*kIsResource=*/true>)
    .Doc(
        "Updates rows of a variable by Adam: see "
        "tfs.ops.resource_sparse_apply_adam_async.");

REGISTER_OP("Syncrep>ResourceSparseApplyAdamAsyncRounded")
    .Input("var: resource")
    .Input("m: resource")
    .Input("v: resource")
    .Input("beta1_power: resource")
    .Input("beta2_power: resource")
    .Input("lr: Tslot")
    .Input("beta1: Tslot")
    .Input("beta2: Tslot")
    .Input("epsilon: Tslot")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Input("rounding_count: resource")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .Attr("use_nesterov: bool = false")
    .Attr("apply_sparse_rmsprop: bool = false")
    .Attr("rmsprop_momentum: float = -1.0")
    .Attr("validate_indices: bool = true")
    .Attr("count_empty: bool = false")
    .Attr("rounding_seed: int = 0")
    .Attr("first_row: int >= 0 = 0")
    .Attr("row_stride: int >= 1 = 1")
    .SetShapeFn(RoundedShape<SparseShape</*kIsResource=*/true>>)
    .Doc(R"doc(
Updates a variable as ResourceSparseApplyAdamAsync does, and rounds it stochastically.

A half or bfloat16 var is rounded to one of the two neighbours of each new value,
which is computed in float: to the one that is farther from zero with the
probability that is right on average. Random bits are a hash of rounding_seed, of
the count, of the row of the table, which is first_row + i * row_stride for row i
of var, and of the element. Float and double variables, m and v are not rounded.

Errors are those of ResourceSparseApplyAdamAsync; and InvalidArgument if rounding_count
is not an int64 variable of one element. Nothing is written then.

var, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad: as in
  ResourceSparseApplyAdamAsync.
indices: the rows of var that the rows of grad belong to.
rounding_count: the count of updates, from which each call takes 1. A call without
  indices counts with count_empty alone.
)doc");

}  // namespace
}  // namespace tf_syncrep
