// Declares the ops of tables that grow: attributes, shapes, documentation.
// `index` is always the handle of a TableIndex, `vectors`, `keys` and `uses`
// are the variables that TableFind has, dtype is the type of the vectors, and
// `table` is the number of a table of the index.

#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/ops/common_shapes.h"

namespace tf_syncrep {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status ZerosShape(InferenceContext* c) {
  ShapeHandle output;
  TF_RETURN_IF_ERROR(ShapeAttr(c, &output));
  c->set_output(0, output);
  return absl::OkStatus();
}

absl::Status ReleaseShape(InferenceContext* c) {
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 1, &keys));
  return ScalarOutputs(c);
}

absl::Status FindShape(InferenceContext* c) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(ShapeAttr(c, &shape));
  TF_RETURN_IF_ERROR(c->WithRank(shape, 2, &shape));
  c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
  c->set_output(1, c->Matrix(InferenceContext::kUnknownDim, c->Dim(shape, 1)));
  return absl::OkStatus();
}

absl::Status GradientShape(InferenceContext* c) {
  ShapeHandle gradient;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(5), 2, &gradient));
  c->set_output(0,
                c->Matrix(InferenceContext::kUnknownDim, c->Dim(gradient, 1)));
  c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

absl::Status StatsShape(InferenceContext* c) {
  c->set_output(0, c->Matrix(InferenceContext::kUnknownDim, 8));
  return absl::OkStatus();
}

REGISTER_OP("Syncrep>TableZeros")
    .Output("zeros: dtype")
    .Attr("shape: shape")
    .Attr("dtype: {half, bfloat16, float, double, int32, int64}")
    .SetIsStateful()
    .SetShapeFn(ZerosShape)
    .Doc(R"doc(
Makes zeros whose memory is not there before they are written.

A variable that begins with them takes memory for rows that were used, not for all that
it has. The op is stateful, so that no graph optimization makes the zeros when a graph
is built. It fails as ResourceExhausted if there is no memory, or, as far as the
operating system knows, will be none.

zeros: The zeros.
shape: The shape of the zeros, which must be known.
dtype: The type of the zeros.
)doc");

REGISTER_OP("Syncrep>TableIndex")
    .Output("index: resource")
    .Attr("tables: list(string) >= 1")
    .Attr("first_rows: list(int)")
    .Attr("capacities: list(int)")
    .Attr("min_counts: list(int)")
    .Attr("seeds: list(int)")
    .Attr(
        "initializers: list({'zeros', 'constant', 'uniform', 'normal', "
        "'truncated_normal'})")
    .Attr("initial_numbers: list(int)")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("counted: bool = false")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs)
    .Doc(R"doc(
Makes the index of a part of tables that grow, or finds it by its name.

The part consists of the variables that the other ops get: vectors, keys and uses, with
equally many rows, of which each table has a range. They say which row has which key;
the index finds the row, and knows which rows are free. The op fails as InvalidArgument
if rows do not follow each other, if a count, an initializer or a number is out of its
range, or if an index of this name has other tables.

tables: The names of the tables.
first_rows: For each table, where its rows begin, which is where those of the table
  before end.
capacities: For each table, how many rows it has.
min_counts: For each table, how often a key is seen in training before it gets a row,
  from 1 to 255.
seeds: For each table, the seed of its initial vectors.
initializers: For each table, how these vectors are distributed.
initial_numbers: For each table two numbers, given by the bits of a double: the constant
  and any other; the ends of the uniform distribution; or the mean and the standard
  deviation.
container, shared_name, counted: As in SyncGate.
)doc");

REGISTER_OP("Syncrep>TableRequests")
    .Input("ids: Tids")
    .Output("requests: num_shards * int64")
    .Output("places: num_features * int32")
    .Attr("Tids: list({int32, int64}) >= 1")
    .Attr("num_shards: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("num_tables: int >= 1")
    .Attr("table_of_feature: list(int)")
    .SetShapeFn(ShardsAndPlaces)
    .Doc(R"doc(
Finds the different keys among the ids of features, shard by shard.

A key is on shard h(key) mod num_shards, where h is the finalizer of SplitMix64: with
unsigned numbers of 64 bits, h = key + 0x9e3779b97f4a7c15, h = (h ^ h >> 30) *
0xbf58476d1ce4e5b9, h = (h ^ h >> 27) * 0x94d049bb133111eb, h = h ^ h >> 31. So
h(0) = 0xe220a8397b1dcdaf, h(1) = 0x910a2dec89025cc1 and h(-1) = 0xe4d971771b652c20.
Files depend on it.

ids: For each feature its ids, of any shape.
requests: For each shard a vector: for each table the number of its keys, and then the
  keys, table by table, each once. Their order depends on all ids, on nothing else.
places: For each feature, in the shape of its ids: the place of each id among the keys
  of all shards, of which those of shard 0 come first.
Tids: For each feature, the type of its ids.
table_of_feature: For each feature, the number of its table.
)doc");

REGISTER_OP("Syncrep>TableFind")
    .Input("index: resource")
    .Input("vectors: resource")
    .Input("keys: resource")
    .Input("uses: resource")
    .Input("request: int64")
    .Output("rows: int32")
    .Output("values: Tout")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("Tout: {half, bfloat16, float, double}")
    .Attr("insert: bool")
    .Attr("shape: shape")
    .Attr("head_rows: int = 0")
    .SetIsStateful()
    .SetShapeFn(FindShape)
    .Doc(R"doc(
Finds the rows of keys, and reads them.

The op fails as InvalidArgument if variables have other shapes than the index wants, if
a key has two rows, or if the request is of another kind. It fails as ResourceExhausted
if there is no memory; keys of the request that have a row may have been used then. The
gradient of `values` with respect to `vectors` comes from TableGradient, on this device.

vectors: Variable of rank 2.
keys: Variable of type int64 and shape [rows], the keys of the rows.
uses: Variable of type int32 and shape [rows, 2], last use and count of each row.
request: An output of TableRequests, which has each key of a table once.
rows: For each key its row, or -1 if it has none.
values: The vector of each key, or zeros if it has no row.
Tout: The type of the result: dtype or, for float, half or bfloat16.
insert: Whether this is for training. If so, a key that has a row is used now, which
  `uses` records: the last use, by the clock of the index, and how often the key was
  used. A key without a row is counted, approximately, and gets a row with an initial
  vector once it was seen as often as its table wants and a row is free. If not, nothing
  changes.
shape: The shape of the vectors.
head_rows: How many rows there is room for in front of the values: see RowMessage.
)doc");

REGISTER_OP("Syncrep>TableGradient")
    .Input("index: resource")
    .Input("keys: resource")
    .Input("uses: resource")
    .Input("request: int64")
    .Input("rows: int32")
    .Input("gradient: Tgrad")
    .Output("values: dtype")
    .Output("kept_rows: int32")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("Tgrad: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn(GradientShape)
    .Doc(R"doc(
Makes the gradient of the vectors that TableFind has read.

Keys without a row are left out, and so are those whose row has another key by now, which
TableStats counts.

request: The request that TableFind had.
rows: The rows that TableFind returned.
gradient: The gradient of the values that TableFind returned.
values: The gradient of each row.
kept_rows: The rows, in the order of their keys in the request.
Tgrad: The type of the gradient: dtype or, for float, half or bfloat16.
)doc");

REGISTER_OP("Syncrep>TableMaintain")
    .Input("index: resource")
    .Input("vectors: resource")
    .Input("keys: resource")
    .Input("uses: resource")
    .Input("step: int64")
    .Input("slots: num_slots * resource")
    .Output("evicted: int64")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("num_slots: int >= 0")
    .Attr("slot_initials: list(int)")
    .Attr("evict: list({'none', 'least_recent', 'least_frequent'})")
    .Attr("unused_for: list(int)")
    .SetIsStateful()
    .SetShapeFn(VectorOutputs)
    .Doc(R"doc(
Sets the clock, frees rows that were evicted last time, and evicts others.

It is called between two updates. Rows that were evicted by the last call have rested
since, so that no gradient can come for them any more. Their slots get their initial
values, and they can be given to other keys; the vector of a row gets its initial value when a key
gets the row. Then rows are evicted: their keys have no row any more, and the rows rest.
The op fails as Aborted if keys or uses was assigned meanwhile, and as Cancelled if the
step was cancelled; what was done is whole then, and the next call does the rest.

step: How many updates were made, in [0, 2^31). A key that is used from now on is used
  at step + 1. Rows with later uses, from before the clock was set back, are used at step.
slots: Variables of the optimizer with as many rows: half, bfloat16, float or double.
evicted: For each table, how many rows were evicted.
slot_initials: For each slot, the number that fills it at first, given by the bits of a
  double.
evict: For each table, which rows to evict when more than 95% of its rows are in use,
  until 90% are. Rows used equally long ago go by their counts, rows used equally often
  by their last uses, and then by their numbers.
unused_for: For each table: rows that were not used for more steps than this are
  evicted; 0 for no such rows. The first maintenance after the last use of a row of such
  a table counts as that use, since the use may have been right before.
)doc");

REGISTER_OP("Syncrep>TableStats")
    .Input("index: resource")
    .Output("stats: int64")
    .SetIsStateful()
    .SetShapeFn(StatsShape)
    .Doc(R"doc(
Tells how the tables of a part are.

stats: For each table a row of numbers: rows in use since the part was used first, rows,
  keys that training found without a row, keys that training gave a row, rows that were
  evicted, keys that a full table refused, gradients dropped, bytes of the index.
)doc");

REGISTER_OP("Syncrep>TableExport")
    .Input("index: resource")
    .Input("keys: resource")
    .Input("uses: resource")
    .Output("row_keys: int64")
    .Output("rows: int32")
    .Output("last_uses: int32")
    .Output("counts: int32")
    .Output("resting: int32")
    .Attr("table: int >= 0")
    .SetIsStateful()
    .SetShapeFn(VectorOutputs)
    .Doc(R"doc(
Lists the keys of a table, and the rows that keys have lost.

row_keys: The keys, ascending.
rows: The rows of the keys.
last_uses: When each key was used last.
counts: How often each key was used.
resting: The rows that have no key, but are not free yet, ascending.
)doc");

REGISTER_OP("Syncrep>TableImport")
    .Input("index: resource")
    .Input("vectors: resource")
    .Input("keys: resource")
    .Input("uses: resource")
    .Input("row_keys: int64")
    .Input("last_uses: int32")
    .Input("counts: int32")
    .Output("rows: int32")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("table: int >= 0")
    .SetIsStateful()
    .SetShapeFn(VectorOutputs)
    .Doc(R"doc(
Gives keys rows, seen often enough or not, and sets when they were used.

Keys that have no row get one at once, with an initial vector. The op fails as
ResourceExhausted if there are fewer free rows than keys without one; nothing was
written then.

row_keys: Different keys.
last_uses: When each key was used last, at least 0. If it is -1, a key that has a
  row keeps its use, and one that gets a row is used now, for the first time.
counts: How often each key was used, at least 1.
rows: The rows of the keys: those that they had, or new ones.
)doc");

REGISTER_OP("Syncrep>TableRelease")
    .Input("index: resource")
    .Input("vectors: resource")
    .Input("keys: resource")
    .Input("uses: resource")
    .Input("row_keys: int64")
    .Input("slots: num_slots * resource")
    .Output("released: int64")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("table: int >= 0")
    .Attr("num_slots: int >= 0")
    .Attr("slot_initials: list(int)")
    .Attr("rests: bool")
    .Attr("sets_back: bool")
    .SetIsStateful()
    .SetShapeFn(ReleaseShape)
    .Doc(R"doc(
Takes their rows from keys of a table, while others look up in this one and in others.

Keys without a row have none afterwards either. The rows rest as those that
TableMaintain evicts, until the second maintenance from now, since the first one may
come before the gradients of a round that is open. They do not count as evicted. The op
fails as Cancelled if the step was cancelled; what was done is whole then.

row_keys: The keys.
slots: See TableMaintain; none are needed if the rows rest.
released: How many keys have lost their rows.
slot_initials: See TableMaintain.
rests: Whether the rows rest. If not, they and all others of the table that rest are
  free at once, with initial slots, and a gradient that is under way may reach the next
  key. The op fails as FailedPrecondition then if the tables are being maintained.
sets_back: Whether the last uses of the other rows are those of an earlier state. If so,
  the clock is set to the highest of them, as when the index is made anew, unless the
  tables are being maintained.
)doc");

}  // namespace
}  // namespace tf_syncrep
