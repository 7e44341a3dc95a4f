// The kernel of maintenance, in which rows that have rested become free, and
// others are evicted.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/kernels/table_part.h"
#include "tf_syncrep/cc/kernels/table_slots.h"
#include "tf_syncrep/cc/lib/table/dynamic_table.h"
#include "tf_syncrep/cc/lib/table/table_maintenance.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/step_cancellation.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using Order = DynamicTable::Order;

absl::Status CheckNotCancelled(OpKernelContext* ctx) {
  return IsCancelled(ctx) ? StepCancelled() : absl::OkStatus();
}

class TableMaintainOp final : public OpKernel {
 public:
  explicit TableMaintainOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<std::string> evict;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(ctx, slots_.Read(ctx));
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
    OP_REQUIRES_OK(ctx, LookupHandle(ctx, &index, "index"));
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
    OP_REQUIRES_OK(ctx, slots_.AddTo(ctx, dtype_, &part));
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
  static absl::Status Aborted() {
    return absl::AbortedError(
        "keys or uses were assigned in the middle of their maintenance.");
  }

  absl::Status Run(OpKernelContext* ctx, const TableIndexResource& index,
                   TableMaintenance* maintenance, TablePart* part) const {
    const auto reset_slots = [&](int64_t row) { slots_.Reset(*part, row); };
    while (true) {
      switch (maintenance->GoOn(part->columns())) {
        case TableMaintenance::Next::kWait: {
          part->Unlock();
          {
            LockedVariables barrier;
            TF_RETURN_IF_ERROR(barrier.Lock(
                ctx, {{TableSlots::kVectorsInput, "vectors", dtype_,
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
          TF_RETURN_IF_ERROR(part->Keep(ctx, TableSlots::kVectors,
                                        maintenance->rows(),
                                        maintenance->num_rows(), &is_same));
          if (!maintenance->Change(part->columns(),
                                   part->tensor(TableSlots::kVectors).data(),
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
  TableSlots slots_;
  std::vector<Order> orders_;
  std::vector<int64_t> unused_for_;
};

REGISTER_KERNEL_BUILDER(
    Name("Syncrep>TableMaintain").Device(tensorflow::DEVICE_CPU),
    TableMaintainOp);

}  // namespace
}  // namespace tf_syncrep
