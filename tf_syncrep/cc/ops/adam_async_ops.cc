// Declares AdamAsync's ops: attributes, documentation. They have the names and
// the inputs of DeepRec's. Those with a count of updates are ops of their own.

#include "tensorflow/core/framework/op.h"
#include "tf_syncrep/cc/ops/rule_shapes.h"

namespace tf_syncrep {
namespace {

#define TF_SYNCREP_ADAM_ASYNC(VAR, SLOT)          \
  .Input("var: " VAR)                             \
      .Input("m: " SLOT)                          \
      .Input("v: " SLOT)                          \
      .Input("beta1_power: " SLOT)                \
      .Input("beta2_power: " SLOT)                \
      .Input("lr: Tslot")                         \
      .Input("beta1: Tslot")                      \
      .Input("beta2: Tslot")                      \
      .Input("epsilon: Tslot")                    \
      .Input("grad: T")                           \
      .Attr("T: {half, bfloat16, float, double}") \
      .Attr("Tslot: {float, double} = DT_FLOAT")  \
      .Attr("use_locking: bool = false")          \
      .Attr("use_nesterov: bool = false")

#define TF_SYNCREP_ADAM_ASYNC_SPARSE()            \
  .Input("indices: Tindices")                     \
      .Attr("Tindices: {int32, int64}")           \
      .Attr("apply_sparse_rmsprop: bool = false") \
      .Attr("rmsprop_momentum: float = -1.0")     \
      .Attr("validate_indices: bool = true")      \
      .Attr("count_empty: bool = false")

REGISTER_OP("ApplyAdamAsync")
TF_SYNCREP_ADAM_ASYNC("Ref(T)", "Ref(Tslot)")
    .Output("out: Ref(T)")
    .SetShapeFn(DenseShape</*kIsResource=*/false>)
    .Doc(
        "Updates a ref variable by Adam with powers of its own: see "
        "tfs.ops.apply_adam_async.");

REGISTER_OP("SparseApplyAdamAsync")
TF_SYNCREP_ADAM_ASYNC("Ref(T)", "Ref(Tslot)")
TF_SYNCREP_ADAM_ASYNC_SPARSE()
    .Output("out: Ref(T)")
    .SetShapeFn(SparseShape</*kIsResource=*/false>)
    .Doc(
        "Updates rows of a ref variable by Adam: see "
        "tfs.ops.sparse_apply_adam_async.");

REGISTER_OP("ResourceApplyAdamAsync")
TF_SYNCREP_ADAM_ASYNC("resource", "resource")
    .SetShapeFn(DenseShape</*kIsResource=*/true>)
    .Doc(
        "Updates a variable by Adam with powers of its own: see "
        "tfs.ops.resource_apply_adam_async.");

REGISTER_OP("Syncrep>ResourceApplyAdamAsyncRounded")
TF_SYNCREP_ADAM_ASYNC("resource", "resource")
    .Input("rounding_count: resource")
    .Attr("rounding_seed: int = 0")
    .Attr("first_row: int >= 0 = 0")
    .Attr("row_stride: int >= 1 = 1")
    .SetShapeFn(DenseShape</*kIsResource=*/true>)
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
TF_SYNCREP_ADAM_ASYNC("resource", "resource")
TF_SYNCREP_ADAM_ASYNC_SPARSE()
    .SetShapeFn(SparseShape</*kIsResource=*/true>)
    .Doc(
        "Updates rows of a variable by Adam: see "
        "tfs.ops.resource_sparse_apply_adam_async.");

REGISTER_OP("Syncrep>ResourceSparseApplyAdamAsyncRounded")
TF_SYNCREP_ADAM_ASYNC("resource", "resource")
TF_SYNCREP_ADAM_ASYNC_SPARSE()
    .Input("rounding_count: resource")
    .Attr("rounding_seed: int = 0")
    .Attr("first_row: int >= 0 = 0")
    .Attr("row_stride: int >= 1 = 1")
    .SetShapeFn(SparseShape</*kIsResource=*/true>)
    .Doc(R"doc(
Updates rows of a variable as ResourceSparseApplyAdamAsync does, and rounds them as
Syncrep>ResourceApplyAdamAsyncRounded does. A call without indices takes 1 of
rounding_count with count_empty alone.
)doc");

#undef TF_SYNCREP_ADAM_ASYNC_SPARSE
#undef TF_SYNCREP_ADAM_ASYNC

}  // namespace
}  // namespace tf_syncrep
