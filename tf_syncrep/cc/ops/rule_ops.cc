// Declares the ops that update a variable by a rule: attributes, shapes,
// documentation.

#include "tensorflow/core/framework/op.h"
#include "tf_syncrep/cc/ops/rule_shapes.h"

namespace tf_syncrep {
namespace {

// All ops that take the name of a rule know the same ones.
constexpr char kRuleAttr[] =
    "rule: {'adagrad', 'ftrl', 'gradient_momentum', 'gradient_nesterov', "
    "'momentum', 'nesterov', 'rowwise_adagrad', 'sgd'}";

REGISTER_OP("Syncrep>ApplyRule")
    .Input("var: Ref(T)")
    .Input("slots: Ref(num_slots * Tslot)")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T")
    .Attr(kRuleAttr)
    .Attr("num_slots: int >= 0")
    .Attr("num_numbers: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .SetShapeFn(DenseShape</*kIsResource=*/false>)
    .Doc(
        "Updates a ref variable by an optimizer's rule: see "
        "tfs.ops.apply_rule.");

REGISTER_OP("Syncrep>SparseApplyRule")
    .Input("var: Ref(T)")
    .Input("slots: Ref(num_slots * Tslot)")
    .Input("numbers: num_numbers * Tslot")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Attr(kRuleAttr)
    .Attr("num_slots: int >= 0")
    .Attr("num_numbers: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
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
    .Attr(kRuleAttr)
    .Attr("num_slots: int >= 0")
    .Attr("num_numbers: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("num_rounding_counts: int >= 0 = 0")
    .Attr("rounding_seed: int = 0")
    .Attr("first_row: int >= 0 = 0")
    .Attr("row_stride: int >= 1 = 1")
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
    .Attr(kRuleAttr)
    .Attr("num_slots: int >= 0")
    .Attr("num_numbers: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tslot: {float, double} = DT_FLOAT")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .Attr("num_rounding_counts: int >= 0 = 0")
    .Attr("rounding_seed: int = 0")
    .Attr("first_row: int >= 0 = 0")
    .Attr("row_stride: int >= 1 = 1")
    .SetShapeFn(SparseShape</*kIsResource=*/true>)
    .Doc(
        "Updates rows of a variable by a rule: see "
        "tfs.ops.resource_sparse_apply_rule.");

}  // namespace
}  // namespace tf_syncrep
