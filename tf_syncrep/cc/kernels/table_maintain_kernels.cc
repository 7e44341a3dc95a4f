// The kernel of maintenance, in which rows that have rested become free, and
// others are evicted.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/base/casts.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/table_index_resource.h"
#include "tf_syncrep/cc/kernels/table_part.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalar_input.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using Order = DynamicTable::Order;

// So many rows are changed before locks are given up for a moment.
constexpr int64_t kRowsAtOnce = 4096;

constexpr int kVectorsInput = 1;
constexpr int kVectors = 0;  // the place of this variable in a TablePart
constexpr int kFirstSlot = 1;

template <typename T>
void FillRow(const Tensor& slot, int64_t row, double value) {
  const int64_t size = slot.NumElements() / slot.dim_size(0);
  T* const begin = Data<T>(slot) + row * size;
  std::fill(begin, begin + size, Narrow<T>(static_cast<SlotType<T>>(value)));
}

// Sets a row of a slot to a number. AddVariables() has checked the slot's type.
void ResetRow(const Tensor& slot, int64_t row, double value) {
  switch (slot.dtype()) {
    case tensorflow::DT_HALF:
      return FillRow<Half>(slot, row, value);
    case tensorflow::DT_BFLOAT16:
      return FillRow<BFloat16>(slot, row, value);
    case tensorflow::DT_FLOAT:
      return FillRow<float>(slot, row, value);
    default:
      return FillRow<double>(slot, row, value);
  }
}

absl::Status CheckNotCancelled(OpKernelContext* ctx) {
  tensorflow::CancellationManager* const manager = ctx->cancellation_manager();
  return manager != nullptr && manager->IsCancelled()
             ? absl::CancelledError("The step was cancelled.")
             : absl::OkStatus();
}

class TableMaintainOp final : public OpKernel {
 public:
  explicit TableMaintainOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<std::string> evict;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    std::vector<int64_t> initials;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("slot_initials", &initials));
    for (const int64_t bits : initials) {
      slot_initials_.push_back(absl::bit_cast<double>(bits));
    }
    OP_REQUIRES_OK(ctx, ctx->GetAttr("evict", &evict));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("unused_for", &unused_for_));
    for (const std::string& order : evict) {
      if (order == "least_recent") {
        orders_.push_back(Order::kLeastRecent);
      } else if (order == "least_frequent") {
        orders_.push_back(Order::kLeastFrequent);
      } else {
        orders_.push_back(Order::kNone);
      }
    }
    for (const int64_t unused_for : unused_for_) {
      OP_REQUIRES(ctx, unused_for >= 0,
                  absl::InvalidArgumentError(absl::StrCat(
                      "unused_for must be at least 0, but is ", unused_for)));
    }
  }

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<TableIndexResource> index;
    int64_t step;
    OP_REQUIRES_OK(ctx, LookupTableIndex(ctx, &index));
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "step", &step));
    OP_REQUIRES(ctx, step >= 0 && step <= std::numeric_limits<int32_t>::max(),
                absl::InvalidArgumentError(
                    absl::StrCat("step must be in [0, 2^31), but is ", step)));
    const auto num_tables = static_cast<size_t>(index->num_tables());
    OP_REQUIRES(
        ctx, orders_.size() == num_tables && unused_for_.size() == num_tables,
        absl::InvalidArgumentError(
            absl::StrCat("evict and unused_for must be of ", num_tables,
                         " tables, but are of ", orders_.size(), " and ",
                         unused_for_.size())));
    TablePart part(index.get(), /*keys=*/2, /*uses=*/3);
    OP_REQUIRES_OK(ctx, AddVariables(ctx, &part));
    OP_REQUIRES_OK(ctx, part.Lock(ctx));
    const int32_t last_clock = index->clock();
    index->set_clock(static_cast<int32_t>(
        std::min<int64_t>(step + 1, std::numeric_limits<int32_t>::max())));
    part.Unlock();
    // This waits for the lock that lookups hold. Those that began before the
    // last maintenance ended may still read vectors of rows that rest, and
    // others may use rows at the last clock.
    {
      LockedVariables barrier;
      OP_REQUIRES_OK(
          ctx, barrier.Lock(ctx, {{kVectorsInput, "vectors", dtype_,
                                   LockedVariables::Access::kExclusive}}));
    }
    OP_REQUIRES_OK(ctx, part.Lock(ctx));
    Tensor* evicted;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(0, {index->num_tables()}, &evicted));
    OP_REQUIRES_OK(ctx, Settle(ctx, index.get(), part, last_clock,
                               static_cast<int32_t>(step)));
    for (int64_t i = 0; i < index->num_tables(); ++i) {
      OP_REQUIRES_OK(ctx, FreeRested(ctx, index.get(), i, &part));
      OP_REQUIRES_OK(ctx, Evict(ctx, index.get(), i, static_cast<int32_t>(step),
                                &part, &Data<int64_t>(*evicted)[i]));
    }
  }

 private:
  absl::Status AddVariables(OpKernelContext* ctx, TablePart* part) const {
    part->Add(kVectorsInput, "vectors", dtype_);
    OpInputList slots;
    TF_RETURN_IF_ERROR(ctx->input_list("slots", &slots));
    if (static_cast<int>(slot_initials_.size()) != slots.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("slot_initials must be of ", slots.size(),
                       " slots, but are of ", slot_initials_.size()));
    }
    constexpr int kFirstSlotInput = 5;
    for (int i = 0; i < slots.size(); ++i) {
      const std::string name = absl::StrCat("slots[", i, "]");
      tensorflow::core::RefCountPtr<tensorflow::Var> slot;
      TF_RETURN_IF_ERROR(tensorflow::LookupResource(
          ctx, tensorflow::HandleFromInput(ctx, kFirstSlotInput + i), &slot));
      DataType dtype;
      {
        tensorflow::tf_shared_lock lock(*slot->mu());
        dtype = slot->tensor()->dtype();
      }
      if (dtype != tensorflow::DT_HALF && dtype != tensorflow::DT_BFLOAT16 &&
          dtype != tensorflow::DT_FLOAT && dtype != tensorflow::DT_DOUBLE) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " must be of a floating point type, but is of ",
                         tensorflow::DataTypeString(dtype)));
      }
      part->Add(kFirstSlotInput + i, name, dtype);
    }
    return absl::OkStatus();
  }

  // Gives up the locks of the variables for a moment, keeps rows for
  // checkpoints, and then calls `change`, which changes these rows.
  static absl::Status Change(OpKernelContext* ctx, TablePart* part,
                             const int32_t* rows, int64_t size,
                             const std::function<void()>& change) {
    TF_RETURN_IF_ERROR(CheckNotCancelled(ctx));
    bool is_same;
    TF_RETURN_IF_ERROR(part->Keep(ctx, kVectors, rows, size, &is_same));
    if (!is_same) {
      return absl::AbortedError(
          "keys or uses were assigned in the middle of their maintenance.");
    }
    change();
    return absl::OkStatus();
  }

  absl::Status FreeRested(OpKernelContext* ctx, TableIndexResource* index,
                          int64_t number, TablePart* part) const {
    DynamicTable& table = index->table(number);
    bool has_memory;
    const int64_t build = table.build();
    const Array<int32_t> rested = table.TakeResting(&has_memory);
    if (!has_memory) {
      return OutOfMemory("the rows that rest", 4 * table.options().capacity);
    }
    for (int64_t begin = 0; begin < rested.size(); begin += kRowsAtOnce) {
      const int64_t size = std::min(kRowsAtOnce, rested.size() - begin);
      const int32_t* const rows = rested.data() + begin;
      const absl::Status status = Change(ctx, part, rows, size, [&] {
        ResetSlots(part, rows, size);
        table.Free(part->columns(), part->tensor(kVectors).data(), rows, size);
      });
      if (!status.ok()) {
        table.PutBackResting(rows, rested.size() - begin, build);
        return status;
      }
    }
    return absl::OkStatus();
  }

  void ResetSlots(TablePart* part, const int32_t* rows, int64_t size) const {
    const void* const vectors = part->tensor(kVectors).data();
    for (int64_t i = 0; i < size; ++i) {
      const MutexLock lock(RowLocks::Global().Of(vectors, rows[i]));
      for (size_t k = 0; k < slot_initials_.size(); ++k) {
        ResetRow(part->tensor(kFirstSlot + static_cast<int>(k)), rows[i],
                 slot_initials_[k]);
      }
    }
  }

  // Settles the last uses of rows. A row may have been used until right now,
  // although its use has the time of the last maintenance. If the clock was set
  // back, as by a restore without the optimizer's state, rows count as used
  // right now where their last uses are still to come.
  absl::Status Settle(OpKernelContext* ctx, TableIndexResource* index,
                      const TablePart& part, int32_t last_clock,
                      int32_t step) const {
    const bool is_set_back =
        std::max(last_clock, index->settled_before()) > index->clock();
    for (int64_t i = 0; i < index->num_tables(); ++i) {
      DynamicTable& table = index->table(i);
      const bool has_to = is_set_back || unused_for_[i] > 0;
      const int64_t end = has_to ? table.first_unused_row() : 0;
      for (int64_t row = table.options().first_row; row < end;
           row += kRowsAtOnce) {
        TF_RETURN_IF_ERROR(CheckNotCancelled(ctx));
        table.Settle(part.columns(), row, std::min(end, row + kRowsAtOnce),
                     index->settled_before(), last_clock, step);
      }
    }
    index->set_settled_before(index->clock());
    return absl::OkStatus();
  }

  absl::Status Evict(OpKernelContext* ctx, TableIndexResource* index,
                     int64_t number, int32_t step, TablePart* part,
                     int64_t* num_evicted) const {
    DynamicTable& table = index->table(number);
    *num_evicted = 0;
    absl::Status no_memory = OutOfMemory(
        absl::StrCat("an eviction from table ", index->options()[number].name),
        (1 << 19) + 8 * table.options().capacity);
    DynamicTable::Eviction eviction;
    Array<int32_t> rows;
    if (!rows.Allocate(kRowsAtOnce) ||
        !table.PlanEviction(part->columns(), step, unused_for_[number],
                            orders_[number], &eviction)) {
      return no_memory;
    }
    int64_t from = table.options().first_row;
    while (from < table.end_row()) {
      const int64_t size = table.Collect(part->columns(), &eviction, &from,
                                         kRowsAtOnce, rows.data());
      TF_RETURN_IF_ERROR(Change(ctx, part, rows.data(), size, [&] {
        *num_evicted +=
            table.Evict(part->columns(), part->tensor(kVectors).data(),
                        eviction, rows.data(), size);
      }));
    }
    return absl::OkStatus();
  }

  DataType dtype_;
  std::vector<double> slot_initials_;
  std::vector<Order> orders_;
  std::vector<int64_t> unused_for_;
};

REGISTER_KERNEL_BUILDER(
    Name("Syncrep>TableMaintain").Device(tensorflow::DEVICE_CPU),
    TableMaintainOp);

}  // namespace
}  // namespace tf_syncrep
