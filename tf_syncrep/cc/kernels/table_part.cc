#include "tf_syncrep/cc/kernels/table_part.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/step_cancellation.h"
#include "tf_syncrep/cc/tf/table_snapshot.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using Access = LockedVariables::Access;

constexpr int kKeys = 0;
constexpr int kUses = 1;

absl::Status BadColumns(const TableOptions& table, int64_t row,
                        const TableColumns& columns,
                        DynamicTable::BuildStatus status) {
  if (status == DynamicTable::BuildStatus::kOutOfMemory) {
    return OutOfMemory(absl::StrCat("the index of table ", table.name),
                       8 * table.rows.capacity);
  }
  const RowUse use = columns.use(row);
  return absl::InvalidArgumentError(absl::StrCat(
      "keys and uses must be those of a table: each key of a table has one "
      "row, and each row in use a count of at least 1 and a last use of at "
      "least 0. Received: row ",
      row, " of table ", table.name,
      status == DynamicTable::BuildStatus::kSecondRow ? ", the second one,"
                                                      : "",
      " with key ", columns.key(row), ", last use ", use.last_use,
      " and count ", use.count));
}

}  // namespace

std::string TableIndexResource::DebugString() const {
  return absl::StrCat("TableIndex of ", num_tables(), " tables");
}

bool TableIndexResource::IsBuiltFrom(const Tensor& keys,
                                     const Tensor& uses) const {
  return num_builds() > 0 && keys_.IsInitialized() &&
         keys_.data() == keys.data() && uses_.data() == uses.data();
}

absl::Status TableIndexResource::BuildFrom(const Tensor& keys,
                                           const Tensor& uses,
                                           Sharder& sharder) {
  const TableColumns columns(Data<int64_t>(keys), uses.data());
  int64_t bad_table = -1;
  int64_t bad_row = -1;
  const DynamicTable::BuildStatus status =
      Build(columns, sharder, &bad_table, &bad_row);
  return status == DynamicTable::BuildStatus::kOk
             ? absl::OkStatus()
             : BadColumns(options()[bad_table], bad_row, columns, status);
}

void TableIndexResource::HoldColumns(const Tensor& keys, const Tensor& uses) {
  keys_ = keys;
  uses_ = uses;
}

absl::Status CheckTable(const TableIndexResource& index, int64_t table) {
  if (table < index.num_tables()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "table must be in [0, ", index.num_tables(), "), but is ", table));
}

TablePart::TablePart(TableIndexResource* index, int keys, int uses,
                     Access access)
    : index_(index), access_(access) {
  // The index holds the columns' buffers as well, so that shared access would
  // copy them: Lock() prepares them for it.
  requests_ = {
      {keys, "keys", tensorflow::DT_INT64, Access::kRead},
      {uses, "uses", tensorflow::DT_INT32, Access::kRead},
  };
}

int TablePart::Add(int input, std::string name, tensorflow::DataType dtype) {
  requests_.push_back({input, std::move(name), dtype, access_});
  return static_cast<int>(requests_.size()) - 1 - kColumns;
}

absl::Status TablePart::CheckShapes(const LockedVariables& variables,
                                    int num) const {
  const int64_t num_rows = index_->num_rows();
  for (int i = 0; i < num; ++i) {
    const TensorShape& shape = variables.tensor(i).shape();
    const bool has_rows = shape.dims() > 0 && shape.dim_size(0) == num_rows;
    const bool fits = i == kKeys   ? shape.dims() == 1
                      : i == kUses ? shape.dims() == 2 && shape.dim_size(1) == 2
                                   : true;
    if (!has_rows || !fits) {
      return absl::InvalidArgumentError(
          absl::StrCat(requests_[i].name, " must have shape [", num_rows,
                       i == kKeys   ? "]"
                       : i == kUses ? ", 2]"
                                    : ", ...]",
                       ", for the rows that the index has, but has shape ",
                       shape.DebugString()));
    }
  }
  return absl::OkStatus();
}

bool TablePart::IsReady() const {
  return index_->IsBuiltFrom(locked().tensor(kKeys), locked().tensor(kUses)) &&
         (access_ == Access::kRead ||
          (locked().IsShared(kKeys) && locked().IsShared(kUses)));
}

absl::Status TablePart::Lock(OpKernelContext* ctx) {
  ++num_locks_;
  while (true) {
    variables_.emplace();
    absl::Status status = variables_->Lock(ctx, requests_);
    if (status.ok()) {
      status = CheckShapes(*variables_, static_cast<int>(requests_.size()));
    }
    if (!status.ok()) {
      variables_.reset();
      return status;
    }
    if (IsReady()) {
      return absl::OkStatus();
    }
    variables_.reset();
    std::vector<LockedVariables::Request> columns(requests_.begin(),
                                                  requests_.begin() + kColumns);
    for (LockedVariables::Request& column : columns) {
      column.access = Access::kExclusive;
    }
    LockedVariables locked;
    TF_RETURN_IF_ERROR(locked.Lock(ctx, columns));
    TF_RETURN_IF_ERROR(CheckShapes(locked, kColumns));
    const bool is_built =
        index_->IsBuiltFrom(locked.tensor(kKeys), locked.tensor(kUses));
    // What the index alone holds is not copied. TensorFlow's saver ends the
    // mode of both columns, and may still read them.
    index_->HoldColumns(Tensor(), Tensor());
    for (const int i : {kKeys, kUses}) {
      TF_RETURN_IF_ERROR(locked.PrepareToShare(ctx, i));
    }
    if (!is_built) {
      DeviceSharder sharder(ctx);
      TF_RETURN_IF_ERROR(index_->BuildFrom(locked.tensor(kKeys),
                                           locked.tensor(kUses), sharder));
    }
    index_->HoldColumns(locked.tensor(kKeys), locked.tensor(kUses));
  }
}

absl::Status TablePart::Keep(OpKernelContext* ctx, int of, const int32_t* rows,
                             int64_t size, bool* is_same) {
  *is_same = true;
  const int64_t num_builds = index_->num_builds();
  const auto cancelled = [ctx] { return IsCancelled(ctx); };
  std::vector<std::shared_ptr<TableSnapshot>> kept;
  // The loop is needed because another snapshot may begin while the variables
  // are not locked.
  while (true) {
    std::vector<std::shared_ptr<TableSnapshot>> snapshots =
        TableSnapshot::Find(locked().mutex(kColumns + of));
    snapshots.erase(std::remove_if(snapshots.begin(), snapshots.end(),
                                   [&kept](const auto& snapshot) {
                                     return std::find(kept.begin(), kept.end(),
                                                      snapshot) != kept.end();
                                   }),
                    snapshots.end());
    if (snapshots.empty() || size == 0) {
      *is_same = index_->num_builds() == num_builds;
      return absl::OkStatus();
    }
    // A snapshot takes these locks itself, and may wait for its files, so that
    // none is held here.
    Unlock();
    for (const std::shared_ptr<TableSnapshot>& snapshot : snapshots) {
      TF_RETURN_IF_ERROR(snapshot->Keep(rows, size, cancelled));
    }
    TF_RETURN_IF_ERROR(Lock(ctx));
    kept.insert(kept.end(), snapshots.begin(), snapshots.end());
  }
}

TableColumns TablePart::columns() const {
  return TableColumns(Data<int64_t>(locked().tensor(kKeys)),
                      locked().tensor(kUses).data());
}

}  // namespace tf_syncrep
