// Kernels that read which rows keys have: gradients for these rows, and
// exports.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/table_index_resource.h"
#include "tf_syncrep/cc/kernels/table_part.h"
#include "tf_syncrep/cc/kernels/table_request.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"
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

constexpr int64_t kMinElementsPerThread = 32768;

template <typename T, typename Out>
class TableGradientOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<TableIndexResource> index;
    OP_REQUIRES_OK(ctx, LookupTableIndex(ctx, &index));
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
    using Occurrence = RowOccurrence<uint32_t>;
    Array<Occurrence> kept;
    Array<Occurrence> spare;
    const absl::Status no_memory = OutOfMemory(
        absl::StrCat("the rows of ", num_keys, " keys"), 16 * num_keys);
    OP_REQUIRES(ctx, kept.Allocate(num_keys) && spare.Allocate(num_keys),
                no_memory);
    int64_t size = 0;
    OP_REQUIRES_OK(
        ctx, FindKept(ctx, index.get(), request, Data<const int32_t>(rows),
                      kept.data(), &size));
    DeviceSharder sharder(ctx);
    const Occurrence* const sorted =
        SortByRow(kept.data(), spare.data(), size, sharder);
    OP_REQUIRES(ctx, sorted != nullptr, no_memory);
    for (int64_t i = 1; i < size; ++i) {
      OP_REQUIRES(ctx, sorted[i].row != sorted[i - 1].row,
                  absl::InvalidArgumentError(absl::StrCat(
                      "request must have each key of a table once. Received: "
                      "keys ",
                      sorted[i - 1].place, " and ", sorted[i].place,
                      " are both that of row ", sorted[i].row)));
    }
    const int64_t width = gradient.dim_size(1);
    Tensor* values;
    Tensor* kept_rows;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, TensorShape({size, width}), &values));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(1, TensorShape({size}), &kept_rows));
    const auto* const from = Data<const LibType<Out>>(gradient);
    auto* const to = Data<LibType<T>>(*values);
    auto* const to_rows = Data<int32_t>(*kept_rows);
    const int64_t num_shards =
        sharder.NumShards(size * width, kMinElementsPerThread);
    sharder.Run(num_shards, [&](int64_t shard) {
      const int64_t end = ShardBegin(shard + 1, num_shards, size);
      for (int64_t i = ShardBegin(shard, num_shards, size); i < end; ++i) {
        to_rows[i] = static_cast<int32_t>(sorted[i].row);
        const auto* const row =
            from + static_cast<int64_t>(sorted[i].place) * width;
        if constexpr (std::is_same_v<T, Out>) {
          std::memcpy(to + i * width, row,
                      static_cast<size_t>(width) * sizeof(T));
        } else {
          for (int64_t c = 0; c < width; ++c) {
            to[i * width + c] = Widen(row[c]);
          }
        }
      }
    });
  }

 private:
  // The keys whose row still belongs to them.
  static absl::Status FindKept(OpKernelContext* ctx, TableIndexResource* index,
                               const TableRequest& request, const int32_t* rows,
                               RowOccurrence<uint32_t>* kept, int64_t* size) {
    TablePart part(index, /*keys=*/1, /*uses=*/2, Access::kRead);
    TF_RETURN_IF_ERROR(part.Lock(ctx));
    const TableColumns columns = part.columns();
    for (int64_t table = 0; table < index->num_tables(); ++table) {
      DynamicTable& of = index->table(table);
      int64_t bad;
      if (!of.FindKept(columns, request.keys(), rows, request.begin(table),
                       request.begin(table) + request.size(table), kept, size,
                       &bad)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "rows[", bad, "] must be a row of table ",
            index->options()[table].name, ", in [", of.options().first_row,
            ", ", of.end_row(), "), or -1, but is ", ReadOnce(&rows[bad])));
      }
    }
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
    OP_REQUIRES_OK(ctx, LookupTableIndex(ctx, &index));
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
