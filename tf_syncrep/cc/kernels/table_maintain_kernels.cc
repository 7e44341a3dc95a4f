// The kernel of maintenance, in which rows that have rested become free, and
// others are evicted.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
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
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/table/dynamic_table.h"
#include "tf_syncrep/cc/lib/table/table_maintenance.h"
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
    TablePart part(index.get(), /*keys=*/2, /*uses=*/3,
                   LockedVariables::Access::kShared);
    OP_REQUIRES_OK(ctx, AddVariables(ctx, &part));
    OP_REQUIRES_OK(ctx, part.Lock(ctx));
    std::vector<TableMaintenance::Rules> rules;
    rules.reserve(num_tables);
    for (size_t i = 0; i < num_tables; ++i) {
      rules.push_back({orders_[i], unused_for_[i]});
    }
    TableMaintenance maintenance(index.get(), std::move(rules),
                                 static_cast<int32_t>(step));
    OP_REQUIRES(ctx, maintenance.has_begun(),
                absl::FailedPreconditionError(
                    "The tables are being maintained already, and maintenances "
                    "come one after the other."));
    Tensor* evicted;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(0, {index->num_tables()}, &evicted));
    OP_REQUIRES_OK(ctx, Run(ctx, *index, &maintenance, &part));
    std::copy(maintenance.num_evicted().begin(),
              maintenance.num_evicted().end(), Data<int64_t>(*evicted));
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
      TF_RETURN_IF_ERROR(CheckScalar(slots[i], name));
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

  static absl::Status Aborted() {
    return absl::AbortedError(
        "keys or uses were assigned in the middle of their maintenance.");
  }

  absl::Status Run(OpKernelContext* ctx, const TableIndexResource& index,
                   TableMaintenance* maintenance, TablePart* part) const {
    const auto reset_slots = [&](int64_t row) {
      for (size_t k = 0; k < slot_initials_.size(); ++k) {
        ResetRow(part->tensor(kFirstSlot + static_cast<int>(k)), row,
                 slot_initials_[k]);
      }
    };
    while (true) {
      switch (maintenance->GoOn(part->columns())) {
        case TableMaintenance::Next::kWait: {
          part->Unlock();
          {
            LockedVariables barrier;
            TF_RETURN_IF_ERROR(
                barrier.Lock(ctx, {{kVectorsInput, "vectors", dtype_,
                                    LockedVariables::Access::kExclusive}}));
          }
          TF_RETURN_IF_ERROR(part->Lock(ctx));
          break;
        }
        case TableMaintenance::Next::kGoOn:
          TF_RETURN_IF_ERROR(CheckNotCancelled(ctx));
          break;
        case TableMaintenance::Next::kChange: {
          TF_RETURN_IF_ERROR(CheckNotCancelled(ctx));
          bool is_same;
          TF_RETURN_IF_ERROR(part->Keep(ctx, kVectors, maintenance->rows(),
                                        maintenance->num_rows(), &is_same));
          if (!maintenance->Change(part->columns(),
                                   part->tensor(kVectors).data(),
                                   reset_slots)) {
            return Aborted();
          }
          break;
        }
        case TableMaintenance::Next::kNoMemory: {
          const TableOptions& table = index.options()[maintenance->table()];
          return OutOfMemory(
              absl::StrCat("a maintenance of table ", table.name),
              (1 << 19) + 12 * table.rows.capacity);
        }
        case TableMaintenance::Next::kAborted:
          return Aborted();
        case TableMaintenance::Next::kOver:
          return absl::OkStatus();
      }
    }
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
