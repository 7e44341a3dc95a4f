// The kernel that takes rows away from given keys.

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/kernels/table_part.h"
#include "tf_syncrep/cc/kernels/table_slots.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"
#include "tf_syncrep/cc/lib/table/dynamic_table.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class TableReleaseOp final : public OpKernel {
 public:
  explicit TableReleaseOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table", &table_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rests", &rests_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sets_back", &sets_back_));
    OP_REQUIRES_OK(ctx, slots_.Read(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<TableIndexResource> index;
    OP_REQUIRES_OK(ctx, LookupHandle(ctx, &index, "index"));
    OP_REQUIRES_OK(ctx, CheckTable(*index, table_));
    const tensorflow::Tensor& input = ctx->input(4);
    OP_REQUIRES_OK(ctx, CheckVector(input, "row_keys"));
    Array<int64_t> keys;
    OP_REQUIRES(ctx, keys.Allocate(input.NumElements()), NoMemory(*index));
    for (int64_t i = 0; i < keys.size(); ++i) {
      keys[i] = ReadOnce(Data<const int64_t>(input) + i);
    }
    TablePart part(index.get(), /*keys=*/2, /*uses=*/3,
                   LockedVariables::Access::kShared);
    OP_REQUIRES_OK(ctx, slots_.AddTo(ctx, dtype_, &part));
    OP_REQUIRES_OK(ctx, part.Lock(ctx));
    int64_t num_released = 0;
    const int64_t build = index->num_builds();
    OP_REQUIRES(ctx, rests_ || index->TryBeginMaintenance(),
                absl::FailedPreconditionError(
                    "The tables are being maintained, and rows that have just "
                    "begun to rest cannot be freed."));
    const absl::Status released =
        ReleaseAll(ctx, index.get(), keys, &part, &num_released);
    if (!rests_) {
      index->EndMaintenance(build);
    }
    OP_REQUIRES_OK(ctx, released);
    if (sets_back_) {
      index->SetBack(part.columns());
    }
    OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, 0, num_released));
  }

 private:
  static constexpr int kVectors = TableSlots::kVectors;

  absl::Status NoMemory(const TableIndexResource& index) const {
    const TableOptions& table = index.options()[table_];
    return OutOfMemory(absl::StrCat("keys of table ", table.name),
                       20 * table.rows.capacity);
  }

  absl::Status ReleaseAll(OpKernelContext* ctx, TableIndexResource* index,
                          const Array<int64_t>& keys, TablePart* part,
                          int64_t* num_released) const {
    bool is_same;
    do {
      TF_RETURN_IF_ERROR(
          Release(ctx, index, keys, part, num_released, &is_same));
      // Those that were released only now come second.
      for (int i = 0; i < 2 && is_same && !rests_; ++i) {
        TF_RETURN_IF_ERROR(FreeResting(ctx, index, part, &is_same));
      }
    } while (!is_same);
    return absl::OkStatus();
  }

  absl::Status Release(OpKernelContext* ctx, TableIndexResource* index,
                       const Array<int64_t>& keys, TablePart* part,
                       int64_t* num_released, bool* is_same) const {
    DynamicTable& table = index->table(table_);
    Array<int64_t> found;
    Array<int32_t> rows;
    DeviceSharder sharder(ctx);
    bool has_memory = found.Allocate(keys.size()) && rows.Allocate(keys.size());
    if (has_memory) {
      table.Find(part->columns(), keys.data(), keys.size(), rows.data(),
                 sharder, &has_memory);
    }
    if (!has_memory) {
      return NoMemory(*index);
    }
    int64_t size = 0;
    for (int64_t i = 0; i < keys.size(); ++i) {
      if (rows[i] >= 0) {
        found[size] = keys[i];
        rows[size++] = rows[i];
      }
    }
    TF_RETURN_IF_ERROR(part->Keep(ctx, kVectors, rows.data(), size, is_same));
    if (*is_same) {
      *num_released +=
          table.Release(part->columns(), part->tensor(kVectors).data(),
                        found.data(), rows.data(), size);
    }
    return absl::OkStatus();
  }

  absl::Status FreeResting(OpKernelContext* ctx, TableIndexResource* index,
                           TablePart* part, bool* is_same) const {
    DynamicTable& table = index->table(table_);
    bool has_memory;
    const int64_t build = table.build();
    const Array<int32_t> rows = table.TakeResting(&has_memory);
    if (!has_memory) {
      return NoMemory(*index);
    }
    absl::Status kept =
        part->Keep(ctx, kVectors, rows.data(), rows.size(), is_same);
    if (!kept.ok()) {
      table.PutBackResting(rows.data(), rows.size(), build);
      return kept;
    }
    if (*is_same) {
      const void* const vectors = part->tensor(kVectors).data();
      for (const int32_t row : rows) {
        const MutexLock lock(RowLocks::Global().Of(vectors, row));
        slots_.Reset(*part, row);
      }
      table.Free(part->columns(), vectors, rows.data(), rows.size());
    }
    return absl::OkStatus();
  }

  tensorflow::DataType dtype_;
  int64_t table_;
  bool rests_;
  bool sets_back_;
  TableSlots slots_;
};

REGISTER_KERNEL_BUILDER(
    Name("Syncrep>TableRelease").Device(tensorflow::DEVICE_CPU),
    TableReleaseOp);

}  // namespace
}  // namespace tf_syncrep
