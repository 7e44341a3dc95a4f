// Declares the embedding ops: attributes, shapes, documentation.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/ops/common_shapes.h"

namespace tf_syncrep {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status GatherShape(InferenceContext* c) {
  ShapeHandle shape;
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(ShapeAttr(c, &shape));
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
    .SetShapeFn(ShardsAndPlaces)
    .Doc("Finds the distinct rows that ids name: see tfs.ops.embedding_rows.");

REGISTER_OP("Syncrep>EmbeddingGather")
    .Input("table: resource")
    .Input("rows: Trows")
    .Output("vectors: Tout")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("Tout: {half, bfloat16, float, double}")
    .Attr("Trows: {int32, int64}")
    .Attr("shape: shape")
    .Attr("head_rows: int = 0")
    .SetShapeFn(GatherShape)
    .Doc("Reads rows of a variable: see tfs.ops.embedding_gather.");

#define TF_SYNCREP_COMBINERS()                                   \
  .Attr("T: {half, bfloat16, float, double}")                    \
      .Attr("Tsum: {float, double}")                             \
      .Attr("num_shards: int >= 1")                              \
      .Attr("num_features: int >= 1")                            \
      .Attr("num_ragged: int >= 0")                              \
      .Attr("num_weighted: int >= 0")                            \
      .Attr("combiners: list({'none', 'sum', 'mean', 'sqrtn'})") \
      .Attr("is_ragged: list(bool)")                             \
      .Attr("is_weighted: list(bool)")

REGISTER_OP("Syncrep>EmbeddingCombine")
    .Input("vectors: num_shards * T")
    .Input("places: num_features * int32")
    .Input("row_splits: num_ragged * int64")
    .Input("weights: num_weighted * float")
    .Output("results: num_features * Tsum") TF_SYNCREP_COMBINERS()
    .SetShapeFn(CombineShape)
    .Doc(
        "Arranges and combines rows for features: see "
        "tfs.ops.embedding_combine.");

REGISTER_OP("Syncrep>EmbeddingCombineGrad")
    .Input("gradients: num_features * Tsum")
    .Input("vectors: num_shards * T")
    .Input("places: num_features * int32")
    .Input("row_splits: num_ragged * int64")
    .Input("weights: num_weighted * float")
    .Output("sums: num_shards * T") TF_SYNCREP_COMBINERS()
    .Attr("head_rows: list(int) = []")
    .SetShapeFn(CombineGradShape)
    .Doc(
        "Computes the gradient of EmbeddingCombine: see "
        "tfs.ops.embedding_combine_grad.");

#undef TF_SYNCREP_COMBINERS

}  // namespace
}  // namespace tf_syncrep
