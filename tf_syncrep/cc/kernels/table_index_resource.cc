#include "tf_syncrep/cc/kernels/table_index_resource.h"

#include "absl/strings/str_cat.h"
#include "tf_syncrep/cc/lib/table/table_columns.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::Tensor;

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

}  // namespace tf_syncrep
