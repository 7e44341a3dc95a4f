// Kernels that find the rows which ids name, and read them: check, call
// cc/lib/rows/distinct_rows and cc/lib/rows/row_gather, hand back.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/batch_ids.h"
#include "tf_syncrep/cc/lib/rows/distinct_rows.h"
#include "tf_syncrep/cc/lib/rows/row_gather.h"
#include "tf_syncrep/cc/lib/rows/row_partition.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/head_room.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename Row>
class EmbeddingRowsOp final : public OpKernel {
 public:
  explicit EmbeddingRowsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    int64_t num_shards;
    int64_t num_rows;
    std::vector<int64_t> shard_sizes;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_shards", &num_shards));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_rows", &num_rows));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shard_sizes", &shard_sizes));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("first_rows", &first_rows_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("vocabulary_sizes", &vocabulary_sizes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("features", &features_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("tables", &tables_));
    OP_REQUIRES_OK(ctx, CheckShards(num_shards, num_rows, shard_sizes));
    OP_REQUIRES_OK(ctx, CheckFeatures(ctx->num_inputs(), num_rows));
    partition_ = std::make_unique<const RowPartition>(
        shard_sizes.empty() ? RowPartition::Modulo(num_rows, num_shards)
                            : RowPartition::Ranges(shard_sizes));
  }

  void Compute(OpKernelContext* ctx) override {
    int64_t num_ids;
    OP_REQUIRES_OK(ctx, CountIds(ctx, &num_ids));
    std::vector<FeatureIds> features;
    features.reserve(ctx->num_inputs());
    for (int f = 0; f < ctx->num_inputs(); ++f) {
      features.push_back(
          {IdsOf(ctx->input(f)), first_rows_[f], vocabulary_sizes_[f]});
    }
    DeviceSharder sharder(ctx);
    DistinctRows distinct;
    BadId bad_id;
    const auto status = distinct.Find(features, *partition_, sharder, &bad_id);
    OP_REQUIRES(ctx, status != DistinctRows::Status::kBadId,
                NotInTable(bad_id));
    OP_REQUIRES(ctx, status == DistinctRows::Status::kOk,
                OutOfMemory(absl::StrCat("the rows of ", num_ids, " ids"),
                            num_ids * sizeof(int64_t)));
    OpOutputList rows;
    OP_REQUIRES_OK(ctx, ctx->output_list("rows", &rows));
    for (int shard = 0; shard < rows.size(); ++shard) {
      Tensor* output;
      OP_REQUIRES_OK(
          ctx, rows.allocate(shard, TensorShape({distinct.num_rows(shard)}),
                             &output));
      distinct.WriteRows(*partition_, shard, Data<Row>(*output));
    }
    OP_REQUIRES_OK(ctx, WritePlaces(ctx, distinct));
  }

 private:
  static absl::Status CheckShards(int64_t num_shards, int64_t num_rows,
                                  const std::vector<int64_t>& shard_sizes) {
    const auto num_sizes = static_cast<int64_t>(shard_sizes.size());
    if (num_sizes != 0 && num_sizes != num_shards) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard_sizes must be of ", num_shards,
                       " shards, but is of ", num_sizes));
    }
    int64_t sum = 0;
    for (const int64_t size : shard_sizes) {
      if (size < 0 || size > num_rows - sum) {
        return absl::InvalidArgumentError(absl::StrCat(
            "shard_sizes must not be negative and come to num_rows, ", num_rows,
            ", but one is ", size));
      }
      sum += size;
    }
    if (num_sizes != 0 && sum != num_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard_sizes must come to num_rows, ", num_rows,
                       ", but come to ", sum));
    }
    const int64_t largest =
        num_sizes == 0
            ? num_rows / num_shards + 1
            : *std::max_element(shard_sizes.begin(), shard_sizes.end());
    if (largest > std::numeric_limits<Row>::max() ||
        num_rows > (int64_t{1} << 56)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Trows cannot count the rows of a shard, ", largest));
    }
    return absl::OkStatus();
  }

  absl::Status CheckFeatures(size_t num_features, int64_t num_rows) const {
    for (const size_t size : {first_rows_.size(), vocabulary_sizes_.size(),
                              features_.size(), tables_.size()}) {
      if (size != num_features) {
        return absl::InvalidArgumentError(absl::StrCat(
            "first_rows, vocabulary_sizes, features and tables must be of ",
            num_features, " features, but one is of ", size));
      }
    }
    for (size_t f = 0; f < num_features; ++f) {
      if (first_rows_[f] < 0 || first_rows_[f] > num_rows ||
          vocabulary_sizes_[f] < 0 ||
          vocabulary_sizes_[f] > num_rows - first_rows_[f]) {
        return absl::InvalidArgumentError(
            absl::StrCat("table ", tables_[f], " must lie in the ", num_rows,
                         " rows of all tables, but has ", vocabulary_sizes_[f],
                         " from row ", first_rows_[f]));
      }
    }
    return absl::OkStatus();
  }

  absl::Status NotInTable(const BadId& bad_id) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "ids of feature ", features_[bad_id.feature], " must be in [0, ",
        vocabulary_sizes_[bad_id.feature], "), the vocabulary of table ",
        tables_[bad_id.feature], ". Received: id ", bad_id.id, " at position ",
        bad_id.position));
  }

  std::vector<int64_t> first_rows_;
  std::vector<int64_t> vocabulary_sizes_;
  std::vector<std::string> features_;
  std::vector<std::string> tables_;
  // Set by the constructor if it succeeds, and never changed.
  std::unique_ptr<const RowPartition> partition_;
};

template <typename T, typename Out, typename Row>
class EmbeddingGatherOp final : public OpKernel {
 public:
  explicit EmbeddingGatherOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("head_rows", &head_rows_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& rows = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckVector(rows, "rows"));
    LockedVariables variables;
    OP_REQUIRES_OK(ctx,
                   variables.Lock(ctx, {{0, "table", DataTypeToEnum<T>::value,
                                         LockedVariables::Access::kRead}}));
    const Tensor& table = variables.tensor(0);
    OP_REQUIRES_OK(ctx, CheckMatrix(table, "table"));
    const int64_t num_rows = table.dim_size(0);
    const int64_t width = table.dim_size(1);
    Tensor vectors;
    OP_REQUIRES_OK(
        ctx, AllocateWithHeadRoom(ctx, DataTypeToEnum<Out>::value, head_rows_,
                                  rows.dim_size(0), width, &vectors));
    DeviceSharder sharder(ctx);
    const int64_t bad =
        GatherRows(Data<const LibType<T>>(table), num_rows, width,
                   Data<const Row>(rows), rows.dim_size(0),
                   MissingRows::kRefused, Data<LibType<Out>>(vectors), sharder);
    OP_REQUIRES(ctx, bad < 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "rows[", bad, "] = ", Data<const Row>(rows)[bad],
                    " is not in [0, ", num_rows, ")")));
    ctx->set_output(0, vectors);
  }

 private:
  int64_t head_rows_ = 0;
};

#define TF_SYNCREP_REGISTER_ROWS(Row)                        \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>EmbeddingRows")      \
                              .Device(DEVICE_CPU)            \
                              .TypeConstraint<Row>("Trows"), \
                          EmbeddingRowsOp<Row>)
#define TF_SYNCREP_REGISTER_GATHER(T, Out, Row)              \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>EmbeddingGather")    \
                              .Device(DEVICE_CPU)            \
                              .TypeConstraint<T>("dtype")    \
                              .TypeConstraint<Out>("Tout")   \
                              .TypeConstraint<Row>("Trows"), \
                          EmbeddingGatherOp<T, Out, Row>)
#define TF_SYNCREP_REGISTER_TO(T, Out)         \
  TF_SYNCREP_REGISTER_GATHER(T, Out, int32_t); \
  TF_SYNCREP_REGISTER_GATHER(T, Out, int64_t)
#define TF_SYNCREP_REGISTER(T) TF_SYNCREP_REGISTER_TO(T, T)

TF_SYNCREP_REGISTER_ROWS(int32_t);
TF_SYNCREP_REGISTER_ROWS(int64_t);
TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);
TF_SYNCREP_REGISTER_TO(float, Eigen::half);
TF_SYNCREP_REGISTER_TO(float, Eigen::bfloat16);

#undef TF_SYNCREP_REGISTER
#undef TF_SYNCREP_REGISTER_TO
#undef TF_SYNCREP_REGISTER_GATHER
#undef TF_SYNCREP_REGISTER_ROWS

}  // namespace
}  // namespace tf_syncrep
