// Declares the AdamAsync ops: attributes, shapes, documentation.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/ops/adam_async_shapes.h"
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
  TF_RETURN_IF_ERROR(CheckSparseGradient(c, kGrad, kIndices, shape));
  if (!kIsResource) {
    c->set_output(0, shape);
  }
  return absl::OkStatus();
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
    .Doc(R"doc(
Updates a ref variable by Adam with powers of its own.

    alpha = lr * sqrt(1 - beta2_power) / (1 - beta1_power)
    m     = beta1 * m + (1 - beta1) * grad
    v     = beta2 * v + (1 - beta2) * grad * grad
    var  -= alpha * m / (sqrt(v) + epsilon)
    beta1_power *= beta1;  beta2_power *= beta2

With use_nesterov, beta1 * m + (1 - beta1) * grad takes the place of m in the
third line but one. All arithmetic is in Tslot. The whole update is atomic with
respect to other AdamAsync ops on the same variables.

var: The variable.
m: First moment, of the shape of var.
v: Second moment, of the shape of var.
beta1_power: One element: beta1 to the power of the update's number, from 1.
beta2_power: One element: beta2 to the power of the update's number, from 1.
lr: Scalar: the learning rate.
beta1: Scalar: decay rate of the first moment.
beta2: Scalar: decay rate of the second moment.
epsilon: Scalar: the "epsilon hat" of Kingma and Ba (2015).
grad: The gradient, of the shape of var.
out: The same as var.
Tslot: double for a double variable, float for any other.
use_locking: Has no effect here: a dense update always excludes other updates.
use_nesterov: Whether to use Nesterov momentum.
)doc");

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
    .Doc(R"doc(
Updates the rows of a ref variable that a sparse gradient touches, by Adam.

Row indices[i] of var, m and v is updated with row i of grad by the formula of
ApplyAdamAsync; other rows stay as they are. Rows that occur several times are
summed first, in order of occurrence, and applied once. The powers advance once.
With apply_sparse_rmsprop instead

    v = beta2 * v + (1 - beta2) * grad * grad
    m = momentum * m + lr * grad / sqrt(v + epsilon)
    var -= m

and the powers are neither read nor advanced. Updates of the same variables may
run at the same time; each row is updated atomically.

var: The variable, of at least rank 1.
m: First moment, of the shape of var.
v: Second moment, of the shape of var.
beta1_power: One element: beta1 to the power of the update's number, from 1.
beta2_power: One element: beta2 to the power of the update's number, from 1.
lr: Scalar: the learning rate.
beta1: Scalar: decay rate of the first moment.
beta2: Scalar: decay rate of the second moment.
epsilon: Scalar: the "epsilon hat" of Kingma and Ba (2015).
grad: The gradient's rows, of shape [number of indices] + var.shape[1:].
indices: Vector: which row of var each row of grad belongs to.
out: The same as var.
Tslot: double for a double variable, float for any other.
use_locking: If true, the whole update excludes others on the same variables.
use_nesterov: Whether to use Nesterov momentum.
apply_sparse_rmsprop: Whether to use the second formula.
rmsprop_momentum: The momentum of the second formula; beta1 if negative.
validate_indices: If true, an index that is not a row of var is an error, and
  nothing is changed. If false, such indices and their rows of grad are ignored;
  the powers advance all the same. On a GPU this saves reading back a flag.
count_empty: Whether powers advance, too, where there are no indices.
)doc");

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
    .Doc(R"doc(
Updates a resource variable by Adam with powers of its own.

It is the same as ApplyAdamAsync, which documents the formula and the attributes, but
for resource variables.

var: Handle of the variable.
m: Handle of the first moment, of the shape of var.
v: Handle of the second moment, of the shape of var.
beta1_power: Handle of one element: beta1 to the power of the update's number.
beta2_power: Handle of one element: beta2 to the power of the update's number.
lr: Scalar: the learning rate.
beta1: Scalar: decay rate of the first moment.
beta2: Scalar: decay rate of the second moment.
epsilon: Scalar: the "epsilon hat" of Kingma and Ba (2015).
grad: The gradient, of the shape of var.
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
    .Doc(R"doc(
Updates the rows of a resource variable that a sparse gradient touches, by Adam.

It is the same as SparseApplyAdamAsync, which documents the formulas and the
attributes, but for resource variables. From then on reads of var, m and v copy
(TensorFlow's copy-on-read mode), so that no tensor that was read before changes.

var: Handle of the variable, of at least rank 1.
m: Handle of the first moment, of the shape of var.
v: Handle of the second moment, of the shape of var.
beta1_power: Handle of one element: beta1 to the power of the update's number.
beta2_power: Handle of one element: beta2 to the power of the update's number.
lr: Scalar: the learning rate.
beta1: Scalar: decay rate of the first moment.
beta2: Scalar: decay rate of the second moment.
epsilon: Scalar: the "epsilon hat" of Kingma and Ba (2015).
grad: The gradient's rows, of shape [number of indices] + var.shape[1:].
indices: Vector: which row of var each row of grad belongs to.
)doc");

}  // namespace
}  // namespace tf_syncrep
