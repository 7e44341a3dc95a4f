// Declares the embedding ops: attributes, shapes, documentation.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"

namespace tf_syncrep {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status RowsShape(InferenceContext* c) {
  int num_shards;
  TF_RETURN_IF_ERROR(c->GetAttr("num_shards", &num_shards));
  for (int shard = 0; shard < num_shards; ++shard) {
    c->set_output(shard, c->Vector(InferenceContext::kUnknownDim));
  }
  for (int feature = 0; feature < c->num_inputs(); ++feature) {
    c->set_output(num_shards + feature, c->input(feature));
  }
  return absl::OkStatus();
}

absl::Status GatherShape(InferenceContext* c) {
  PartialTensorShape table;
  TF_RETURN_IF_ERROR(c->GetAttr("shape", &table));
  ShapeHandle shape;
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(table, &shape));
  TF_RETURN_IF_ERROR(c->WithRank(shape, 2, &shape));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &rows));
  c->set_output(0, c->Matrix(c->Dim(rows, 0), c->Dim(shape, 1)));
  return absl::OkStatus();
}

absl::Status CombineShape(InferenceContext* c) {
  std::vector<std::string> combiners;
  std::vector<bool> is_ragged;
  int num_shards;
  TF_RETURN_IF_ERROR(c->GetAttr("combiners", &combiners));
  TF_RETURN_IF_ERROR(c->GetAttr("is_ragged", &is_ragged));
  TF_RETURN_IF_ERROR(c->GetAttr("num_shards", &num_shards));
  const int num_features = c->num_outputs();
  if (static_cast<int>(combiners.size()) != num_features ||
      static_cast<int>(is_ragged.size()) != num_features) {
    return absl::InvalidArgumentError(absl::StrCat(
        "combiners and is_ragged must be of ", num_features,
        " features, but are of ", combiners.size(), " and ", is_ragged.size()));
  }
  ShapeHandle vectors;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &vectors));
  const ShapeHandle row = c->Vector(c->Dim(vectors, 1));
  int splits = num_shards + num_features;
  for (int feature = 0; feature < num_features; ++feature) {
    ShapeHandle result = c->input(num_shards + feature);
    if (is_ragged[feature]) {
      if (splits >= c->num_inputs()) {
        return absl::InvalidArgumentError(
            "there must be row_splits for each feature that is ragged");
      }
      tensorflow::shape_inference::DimensionHandle size;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(splits), 1, &result));
      TF_RETURN_IF_ERROR(c->Subtract(c->Dim(result, 0), 1, &size));
      result = c->Vector(size);
      ++splits;
    } else if (combiners[feature] != "none") {
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(result, 1, &result));
      TF_RETURN_IF_ERROR(c->Subshape(result, 0, -1, &result));
    }
    TF_RETURN_IF_ERROR(c->Concatenate(result, row, &result));
    c->set_output(feature, result);
  }
  return absl::OkStatus();
}

absl::Status CombineGradShape(InferenceContext* c) {
  std::vector<ShapeHandle> vectors;
  TF_RETURN_IF_ERROR(c->input("vectors", &vectors));
  for (size_t shard = 0; shard < vectors.size(); ++shard) {
    c->set_output(static_cast<int>(shard), vectors[shard]);
  }
  return absl::OkStatus();
}

REGISTER_OP("Syncrep>EmbeddingRows")
    .Input("ids: Tids")
    .Output("rows: num_shards * Trows")
    .Output("places: num_features * int32")
    .Attr("Tids: list({int32, int64}) >= 1")
    .Attr("Trows: {int32, int64} = DT_INT32")
    .Attr("num_shards: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("num_rows: int >= 0")
    .Attr("shard_sizes: list(int) = []")
    .Attr("first_rows: list(int)")
    .Attr("vocabulary_sizes: list(int)")
    .Attr("features: list(string)")
    .Attr("tables: list(string)")
    .SetShapeFn(RowsShape)
    .Doc(R"doc(
Finds the distinct rows that the ids of features name, shard by shard.

Tables are stacked: row r of a feature's table is row first_rows[feature] + r of the
stack. Row g of the stack is row g / num_shards of shard g % num_shards or, with
shard_sizes, belongs to the shard in whose range it lies.

ids: For each feature its ids, of any shape.
rows: For each shard its rows that are named, each once, ascending, with the numbers
  that they have in the shard.
places: For each id the place of its row among the rows of all shards; those of shard 0
  come first.
Tids: For each feature the type of its ids.
Trows: The type of the row numbers.
num_shards: How many shards there are.
num_features: How many features there are.
num_rows: How many rows all tables have together.
shard_sizes: For each shard how many rows it has, the first rows being those of shard 0.
  Empty if rows are dealt out to the shards in turn.
first_rows: For each feature, where its table begins.
vocabulary_sizes: For each feature, how many rows its table has.
features: For each feature its name, for error messages.
tables: For each feature the name of its table, for error messages.
)doc");

REGISTER_OP("Syncrep>EmbeddingGather")
    .Input("table: resource")
    .Input("rows: Trows")
    .Output("vectors: Tout")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("Tout: {half, bfloat16, float, double}")
    .Attr("Trows: {int32, int64}")
    .Attr("shape: shape")
    .SetShapeFn(GatherShape)
    .Doc(R"doc(
Reads rows of a variable, and rounds them to the type in which they are sent.

table: The variable, of rank 2.
rows: Vector: the rows to read, each of which must be in range.
vectors: The rows, in the same order.
dtype: The dtype of the variable.
Tout: The dtype of the vectors: that of the variable or, for float, half or bfloat16.
Trows: The type of the row numbers.
shape: The shape of the variable.
)doc");

REGISTER_OP("Syncrep>EmbeddingCombine")
    .Input("vectors: num_shards * T")
    .Input("places: num_features * int32")
    .Input("row_splits: num_ragged * int64")
    .Input("weights: num_weighted * float")
    .Output("results: num_features * Tsum")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tsum: {float, double}")
    .Attr("num_shards: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("num_ragged: int >= 0")
    .Attr("num_weighted: int >= 0")
    .Attr("combiners: list({'none', 'sum', 'mean', 'sqrtn'})")
    .Attr("is_ragged: list(bool)")
    .Attr("is_weighted: list(bool)")
    .SetShapeFn(CombineShape)
    .Doc(R"doc(
Arranges looked-up rows for the features whose ids named them, and combines the rows
of each example.

vectors: For each shard its rows, which all have the same width.
places: For each feature and each of its ids, the place of its row among the rows of all
  shards. A vector for a ragged feature. For others with a combiner, the last axis has
  the ids of one example.
row_splits: For each ragged feature, where the ids of each example begin, and where those
  of the last one end.
weights: For each weighted feature a weight for each id.
results: For each feature its vectors. Sums are computed in Tsum.
T: The dtype of the rows.
Tsum: double for double, float for all others.
num_shards: How many shards there are.
num_features: How many features there are.
num_ragged: How many of them are ragged.
num_weighted: How many of them are weighted.
combiners: For each feature: none (one vector for each id), sum, mean (the sum divided by
  the sum of the weights, or 0) or sqrtn (the sum divided by the root of the sum of
  squared weights, or 0).
is_ragged: For each feature, whether it is ragged. Without a combiner it must not be.
is_weighted: For each feature, whether it is weighted. Without a combiner it must not
  be.
)doc");

REGISTER_OP("Syncrep>EmbeddingCombineGrad")
    .Input("gradients: num_features * Tsum")
    .Input("vectors: num_shards * T")
    .Input("places: num_features * int32")
    .Input("row_splits: num_ragged * int64")
    .Input("weights: num_weighted * float")
    .Output("sums: num_shards * T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tsum: {float, double}")
    .Attr("num_shards: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("num_ragged: int >= 0")
    .Attr("num_weighted: int >= 0")
    .Attr("combiners: list({'none', 'sum', 'mean', 'sqrtn'})")
    .Attr("is_ragged: list(bool)")
    .Attr("is_weighted: list(bool)")
    .SetShapeFn(CombineGradShape)
    .Doc(R"doc(
The gradient of EmbeddingCombine: sums for each row the gradients of the ids that name it.

Sums are computed in Tsum, in the order of features and ids. They do not depend on the
number of threads.

gradients: For each feature the gradient of its results.
vectors: See EmbeddingCombine. Only their shapes matter.
places: See EmbeddingCombine.
row_splits: See EmbeddingCombine.
weights: See EmbeddingCombine.
sums: For each shard the gradient of its rows, rounded once.
T: See EmbeddingCombine.
Tsum: See EmbeddingCombine.
num_shards: See EmbeddingCombine.
num_features: See EmbeddingCombine.
num_ragged: See EmbeddingCombine.
num_weighted: See EmbeddingCombine.
combiners: See EmbeddingCombine.
is_ragged: See EmbeddingCombine.
is_weighted: See EmbeddingCombine.
)doc");

}  // namespace
}  // namespace tf_syncrep
