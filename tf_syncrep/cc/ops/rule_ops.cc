// Declares the ops that update a variable by a rule: attributes, shapes,
// documentation.

#include "tensorflow/core/framework/op.h"
#include "tf_syncrep/cc/ops/rule_shapes.h"

namespace tf_syncrep {
namespace {

#define TF_SYNCREP_RULE_ATTRS()                                              \
  .Attr(                                                                     \
      "rule: {'adagrad', 'ftrl', 'gradient_momentum', 'gradient_nesterov', " \
      "'momentum', 'nesterov', 'rowwise_adagrad', 'sgd'}")                   \
      .Attr("num_slots: int >= 0")                                           \
      .Attr("num_numbers: int >= 1")                                         \
      .Attr("T: {half, bfloat16, float, double}")                            \
      .Attr("Tslot: {float, double} = DT_FLOAT")

#define TF_SYNCREP_ROUNDING_ATTRS()          \
  .Attr("num_rounding_counts: int >= 0 = 0") \
      .Attr("rounding_seed: int = 0")        \
      .Attr("first_row: int >= 0 = 0")       \
      .Attr("row_stride: int >= 1 = 1")

REGISTER_OP("Syncrep>ApplyRule")
    .Input("var: Ref(T)")
    .Input("slots: Ref(num_slots * Tslot)")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T") TF_SYNCREP_RULE_ATTRS()
    .SetShapeFn(DenseShape</*kIsResource=*/false>)
    .Doc(
        "Updates a ref variable by an optimizer's rule: see "
        "tfs.ops.apply_rule.");

REGISTER_OP("Syncrep>SparseApplyRule")
    .Input("var: Ref(T)")
    .Input("slots: Ref(num_slots * Tslot)")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T")
    .Input("indices: Tindices") TF_SYNCREP_RULE_ATTRS()
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .SetShapeFn(SparseShape</*kIsResource=*/false>)
    .Doc(
        "Updates rows of a ref variable by a rule: see "
        "tfs.ops.sparse_apply_rule.");

REGISTER_OP("Syncrep>ResourceApplyRule")
    .Input("var: resource")
    .Input("slots: num_slots * resource")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T")
    .Input("rounding_count: num_rounding_counts * resource")
        TF_SYNCREP_RULE_ATTRS() TF_SYNCREP_ROUNDING_ATTRS()
    .SetShapeFn(DenseShape</*kIsResource=*/true>)
    .Doc(
        "Updates a variable by an optimizer's rule: see "
        "tfs.ops.resource_apply_rule.");

REGISTER_OP("Syncrep>ResourceSparseApplyRule")
    .Input("var: resource")
    .Input("slots: num_slots * resource")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Input("rounding_count: num_rounding_counts * resource")
        TF_SYNCREP_RULE_ATTRS()
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false") TF_SYNCREP_ROUNDING_ATTRS()
    .SetShapeFn(SparseShape</*kIsResource=*/true>)
    .Doc(
        "Updates rows of a variable by a rule: see "
        "tfs.ops.resource_sparse_apply_rule.");

#undef TF_SYNCREP_ROUNDING_ATTRS
#undef TF_SYNCREP_RULE_ATTRS

}  // namespace
}  // namespace tf_syncrep
