// Kernels that make the index of tables that grow, and memory for their rows,
// and that return statistics of the tables.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/casts.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/kernels/counted_resource_op.h"
#include "tf_syncrep/cc/kernels/table_part.h"
#include "tf_syncrep/cc/lib/table/admission_sketch.h"
#include "tf_syncrep/cc/lib/zero_pages.h"
#include "tf_syncrep/cc/tf/buffer_tensor.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class TableZerosOp final : public OpKernel {
 public:
  explicit TableZerosOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    PartialTensorShape shape;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shape", &shape));
    OP_REQUIRES(ctx, shape.AsTensorShape(&shape_),
                absl::InvalidArgumentError(absl::StrCat(
                    "shape must be known, but is ", shape.DebugString())));
  }

  void Compute(OpKernelContext* ctx) override {
    const int64_t num_elements = shape_.num_elements();
    if (num_elements == 0) {
      ctx->set_output(0, Tensor(dtype_, shape_));
      return;
    }
    // No machine has the memory if this is the most that there may be.
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    const int64_t size = tensorflow::DataTypeSize(dtype_);
    const int64_t bytes =
        num_elements > kMost / size ? kMost : num_elements * size;
    OwnedBuffer zeros = ZeroPages(bytes);
    OP_REQUIRES(
        ctx, zeros.owner != nullptr,
        OutOfMemory(absl::StrCat("zeros of shape ", shape_.DebugString()),
                    bytes));
    ctx->set_output(0, BufferTensor(dtype_, shape_, std::move(zeros)));
  }

 private:
  DataType dtype_;
  TensorShape shape_;
};

class TableIndexOp final : public CountedResourceOp<TableIndexResource> {
 public:
  explicit TableIndexOp(OpKernelConstruction* ctx) : CountedResourceOp(ctx) {
    std::vector<std::string> tables;
    std::vector<int64_t> first_rows;
    std::vector<int64_t> capacities;
    std::vector<int64_t> min_counts;
    std::vector<int64_t> seeds;
    std::vector<std::string> initializers;
    std::vector<int64_t> numbers;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("tables", &tables));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("first_rows", &first_rows));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("capacities", &capacities));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("min_counts", &min_counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seeds", &seeds));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("initializers", &initializers));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("initial_numbers", &numbers));
    const size_t num = tables.size();
    for (const auto& [name, size] : {std::pair("first_rows", first_rows.size()),
                                     {"capacities", capacities.size()},
                                     {"min_counts", min_counts.size()},
                                     {"seeds", seeds.size()},
                                     {"initializers", initializers.size()},
                                     {"initial_numbers", numbers.size() / 2}}) {
      OP_REQUIRES(ctx, size == num,
                  absl::InvalidArgumentError(absl::StrCat(
                      name, " must be of ", num, " tables, but is of ", size)));
    }
    int64_t end = 0;
    for (size_t i = 0; i < num; ++i) {
      TableOptions table = {
          tables[i],
          {first_rows[i], capacities[i], static_cast<int>(min_counts[i])},
          InitialKind::kConstant,
          absl::bit_cast<double>(numbers[2 * i]),
          absl::bit_cast<double>(numbers[2 * i + 1]),
          seeds[i]};
      OP_REQUIRES(
          ctx,
          first_rows[i] == end && capacities[i] > 0 &&
              capacities[i] <= std::numeric_limits<int32_t>::max() - end,
          absl::InvalidArgumentError(absl::StrCat(
              "tables must have at least one row each and come one after the "
              "other, with fewer than 2^31 rows together. Received: table ",
              tables[i], " with ", capacities[i], " rows from row ",
              first_rows[i], ", where row ", end, " is the next")));
      end += capacities[i];
      OP_REQUIRES(
          ctx,
          min_counts[i] >= 1 && min_counts[i] <= AdmissionSketch::kMostCount,
          absl::InvalidArgumentError(absl::StrCat(
              "min_counts must be from 1 to ", AdmissionSketch::kMostCount,
              ", but that of table ", tables[i], " is ", min_counts[i])));
      OP_REQUIRES_OK(ctx, ReadInitializer(initializers[i], &table));
      options_.push_back(std::move(table));
    }
  }

 private:
  static absl::Status ReadInitializer(const std::string& name,
                                      TableOptions* table) {
    if (!std::isfinite(table->initial_first) ||
        !std::isfinite(table->initial_second)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the numbers of the initializer of table ", table->name,
                       " must be finite, but are ", table->initial_first,
                       " and ", table->initial_second));
    }
    if (name == "uniform") {
      table->initial_kind = InitialKind::kUniform;
    } else if (name == "normal") {
      table->initial_kind = InitialKind::kNormal;
    } else if (name == "truncated_normal") {
      table->initial_kind = InitialKind::kTruncatedNormal;
    } else if (name == "zeros") {
      table->initial_first = 0;
    }
    return absl::OkStatus();
  }

  absl::Status CreateResource(TableIndexResource** resource) override {
    *resource = new TableIndexResource(options_);
    return absl::OkStatus();
  }

  absl::Status VerifyResource(TableIndexResource* resource) override {
    return CheckSame("table index", Describe(resource->options()),
                     Describe(options_));
  }

  static std::string Describe(const std::vector<TableOptions>& options) {
    std::string text;
    for (const TableOptions& table : options) {
      absl::StrAppend(&text, text.empty() ? "" : "; ", table.name, ": rows ",
                      table.rows.first_row, " to ",
                      table.rows.first_row + table.rows.capacity,
                      ", min_count ", table.rows.min_count, ", initializer ",
                      static_cast<int>(table.initial_kind), " of ",
                      table.initial_first, " and ", table.initial_second,
                      ", seed ", table.seed);
    }
    return text;
  }

  std::vector<TableOptions> options_;
};

class TableStatsOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<TableIndexResource> index;
    OP_REQUIRES_OK(ctx, LookupHandle(ctx, &index, "index"));
    constexpr int64_t kNumStats = 8;
    Tensor* stats;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, {index->num_tables(), kNumStats}, &stats));
    auto* next = Data<int64_t>(*stats);
    for (int64_t i = 0; i < index->num_tables(); ++i) {
      const DynamicTable& table = index->table(i);
      const DynamicTable::Counts counts = table.counts();
      for (const int64_t count :
           {counts.in_use, table.options().capacity, counts.without_row,
            counts.admitted, counts.evicted, counts.refused, counts.dropped,
            counts.bytes}) {
        *next++ = count;
      }
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("Syncrep>TableZeros").Device(DEVICE_CPU),
                        TableZerosOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>TableIndex").Device(DEVICE_CPU),
                        TableIndexOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>TableStats").Device(DEVICE_CPU),
                        TableStatsOp);

}  // namespace
}  // namespace tf_syncrep
