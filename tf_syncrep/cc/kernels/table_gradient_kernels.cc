// Kernels that read which rows keys have: gradients for these rows, and
// exports.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/kernels/table_part.h"
#include "tf_syncrep/cc/kernels/table_request.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/gradient_loops.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/lib/rows/feature_ranges.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"
#include "tf_syncrep/cc/lib/sharder.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
using Access = LockedVariables::Access;

// So many keys are worth another thread.
constexpr int64_t kMinKeysPerThread = 4096;

template <typename T, typename Out>
class TableGradientOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<TableIndexResource> index;
    OP_REQUIRES_OK(ctx, LookupHandle(ctx, &index, "index"));
    TableRequest request;
    OP_REQUIRES_OK(ctx, request.Read(ctx->input(3), index->num_tables()));
    const int64_t num_keys = request.num_keys();
    const Tensor& rows = ctx->input(4);
    const Tensor& gradient = ctx->input(5);
    OP_REQUIRES(ctx, rows.dims() == 1 && rows.dim_size(0) == num_keys,
                absl::InvalidArgumentError(absl::StrCat(
                    "rows must be a vector of ", num_keys,
                    " elements, the keys of the request, but has shape ",
                    rows.shape().DebugString())));
    OP_REQUIRES(ctx,
                TensorShapeUtils::IsMatrix(gradient.shape()) &&
                    gradient.dim_size(0) == num_keys,
                absl::InvalidArgumentError(absl::StrCat(
                    "gradient must be a matrix of ", num_keys,
                    " rows, the keys of the request, but has shape ",
                    gradient.shape().DebugString())));
    DeviceSharder sharder(ctx);
    const int64_t num_shards = sharder.NumShards(num_keys, kMinKeysPerThread);
    const auto begin_of = [=](int64_t shard) {
      return ShardBegin(shard, num_shards, num_keys);
    };
    // For each key its row, or kNoRow; and how many rows the shards before each
    // one have.
    Tensor kept;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(tensorflow::DT_INT32,
                                           TensorShape({num_keys}), &kept));
    auto* const kept_data = Data<int32_t>(kept);
    std::vector<int64_t> kept_before(static_cast<size_t>(num_shards) + 1);
    OP_REQUIRES_OK(ctx, FindKept(ctx, index.get(), request, rows, kept_data,
                                 num_shards, sharder, &kept_before));
    if (kept_before.back() == num_keys) {
      ctx->set_output(1, kept);
      if constexpr (std::is_same_v<T, Out>) {
        ctx->set_output(0, gradient);
        return;
      }
    }
    const int64_t width = gradient.dim_size(1);
    Tensor* values;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, TensorShape({kept_before.back(), width}),
                                  &values));
    Tensor* kept_rows = &kept;
    if (kept_before.back() < num_keys) {
      OP_REQUIRES_OK(ctx,
                     ctx->allocate_output(1, TensorShape({kept_before.back()}),
                                          &kept_rows));
    }
    const auto* const from = Data<const LibType<Out>>(gradient);
    auto* const to = Data<LibType<T>>(*values);
    auto* const to_rows = Data<int32_t>(*kept_rows);
    [[maybe_unused]] const auto& loops =
        GradientLoopsFor<LibType<Out>>(BestCpuLevel());
    sharder.Run(num_shards, [&](int64_t shard) {
      int64_t next = kept_before[shard];
      for (int64_t i = begin_of(shard); i < begin_of(shard + 1); ++i) {
        if (kept_data[i] == DynamicTable::kNoRow) {
          continue;
        }
        to_rows[next] = kept_data[i];
        if constexpr (std::is_same_v<T, Out>) {
          std::memcpy(to + next * width, from + i * width,
                      static_cast<size_t>(width) * sizeof(T));
        } else {
          loops.set(width, from + i * width, to + next * width);
        }
        ++next;
      }
    });
  }

 private:
  static absl::Status FindKept(OpKernelContext* ctx, TableIndexResource* index,
                               const TableRequest& request, const Tensor& rows,
                               int32_t* kept, int64_t num_shards,
                               Sharder& sharder,
                               std::vector<int64_t>* kept_before) {
    TablePart part(index, /*keys=*/1, /*uses=*/2, Access::kRead);
    TF_RETURN_IF_ERROR(part.Lock(ctx));
    const TableColumns columns = part.columns();
    struct Bad {
      int64_t table = -1;
      int64_t place = 0;
    };
    std::vector<Bad> bad(static_cast<size_t>(num_shards));
    sharder.Run(num_shards, [&](int64_t shard) {
      VisitFeatures(request.begins(),
                    ShardBegin(shard, num_shards, request.num_keys()),
                    ShardBegin(shard + 1, num_shards, request.num_keys()),
                    [&](int64_t table, int64_t first, int64_t last) {
                      const int64_t begin = request.begin(table);
                      const int64_t num = index->table(table).FindKept(
                          columns, request.keys(), Data<const int32_t>(rows),
                          begin + first, begin + last, kept, &bad[shard].place);
                      bad[shard].table = num < 0 ? table : -1;
                      (*kept_before)[shard + 1] += num;
                      return num >= 0;
                    });
    });
    for (const auto& [table, place] : bad) {
      if (table >= 0) {
        const DynamicTable& of = index->table(table);
        return absl::InvalidArgumentError(absl::StrCat(
            "rows[", place, "] must be a row of table ",
            index->options()[table].name, ", in [", of.options().first_row,
            ", ", of.end_row(), "), or -1, but is ",
            ReadOnce(&Data<const int32_t>(rows)[place])));
      }
    }
    std::partial_sum(kept_before->begin(), kept_before->end(),
                     kept_before->begin());
    return absl::OkStatus();
  }
};

class TableExportOp final : public OpKernel {
 public:
  explicit TableExportOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table", &table_));
  }

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<TableIndexResource> index;
    OP_REQUIRES_OK(ctx, LookupHandle(ctx, &index, "index"));
    OP_REQUIRES_OK(ctx, CheckTable(*index, table_));
    TablePart part(index.get(), /*keys=*/1, /*uses=*/2, Access::kRead);
    OP_REQUIRES_OK(ctx, part.Lock(ctx));
    const TableColumns columns = part.columns();
    const DynamicTable& table = index->table(table_);
    const int64_t first = table.options().first_row;
    const int64_t end = table.first_unused_row();
    using Occurrence = RowOccurrence<uint64_t>;
    Array<Occurrence> rows;
    Array<Occurrence> spare;
    Array<RowUse> uses;
    const absl::Status no_memory = OutOfMemory(
        absl::StrCat("the rows of table ", index->options()[table_].name),
        (end - first) * (2 * sizeof(Occurrence) + sizeof(RowUse)));
    OP_REQUIRES(ctx,
                rows.Allocate(end - first) && spare.Allocate(end - first) &&
                    uses.Allocate(end - first),
                no_memory);
    // With this bit inverted, keys have the same order as unsigned numbers as
    // they have as signed ones.
    constexpr uint64_t kSign = uint64_t{1} << 63;
    int64_t size = 0;
    for (int64_t row = first; row < end; ++row) {
      int64_t key;
      if (table.Read(columns, row, &key, &uses[row - first])) {
        rows[size++] = {static_cast<uint64_t>(key) ^ kSign,
                        static_cast<uint64_t>(row)};
      }
    }
    DeviceSharder sharder(ctx);
    const Occurrence* const sorted =
        SortByRow(rows.data(), spare.data(), size, sharder);
    OP_REQUIRES(ctx, sorted != nullptr, no_memory);
    Tensor* outputs[4];
    for (int i = 0; i < 4; ++i) {
      OP_REQUIRES_OK(ctx,
                     ctx->allocate_output(i, TensorShape({size}), &outputs[i]));
    }
    for (int64_t i = 0; i < size; ++i) {
      const auto row = static_cast<int64_t>(sorted[i].place);
      const RowUse use = uses[row - first];
      Data<int64_t>(*outputs[0])[i] =
          static_cast<int64_t>(sorted[i].row ^ kSign);
      Data<int32_t>(*outputs[1])[i] = static_cast<int32_t>(row);
      Data<int32_t>(*outputs[2])[i] = use.last_use;
      Data<int32_t>(*outputs[3])[i] = use.count;
    }
  }

 private:
  int64_t table_;
};

#define TF_SYNCREP_REGISTER_GRADIENT(T, Out)                 \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>TableGradient")      \
                              .Device(DEVICE_CPU)            \
                              .TypeConstraint<T>("dtype")    \
                              .TypeConstraint<Out>("Tgrad"), \
                          TableGradientOp<T, Out>)
#define TF_SYNCREP_REGISTER(T) TF_SYNCREP_REGISTER_GRADIENT(T, T)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);
TF_SYNCREP_REGISTER_GRADIENT(float, Eigen::half);
TF_SYNCREP_REGISTER_GRADIENT(float, Eigen::bfloat16);
REGISTER_KERNEL_BUILDER(Name("Syncrep>TableExport").Device(DEVICE_CPU),
                        TableExportOp);

#undef TF_SYNCREP_REGISTER
#undef TF_SYNCREP_REGISTER_GRADIENT

}  // namespace
}  // namespace tf_syncrep
