#include "tf_syncrep/cc/lib/table/table_index.h"

#include <algorithm>

namespace tf_syncrep {

TableIndex::TableIndex(const std::vector<TableOptions>& options)
    : options_(options) {
  for (const TableOptions& table : options_) {
    tables_.push_back(std::make_unique<DynamicTable>(table.rows));
    initial_values_.emplace_back(table.initial_kind, table.initial_first,
                                 table.initial_second,
                                 static_cast<uint64_t>(table.seed), table.name);
    num_rows_ = std::max(num_rows_, tables_.back()->end_row());
  }
}

DynamicTable::BuildStatus TableIndex::Build(const TableColumns& columns,
                                            Sharder& sharder,
                                            int64_t* bad_table,
                                            int64_t* bad_row) {
  ++num_builds_;
  for (int64_t i = 0; i < num_tables(); ++i) {
    const DynamicTable::BuildStatus status =
        tables_[i]->Build(columns, sharder, bad_row);
    if (status != DynamicTable::BuildStatus::kOk) {
      *bad_table = i;
      return status;
    }
  }
  SetBack(columns);
  return DynamicTable::BuildStatus::kOk;
}

bool TableIndex::TryBeginMaintenance() {
  // One of an earlier build does not count: it will find that it is aborted.
  const int64_t build = num_builds_;
  int64_t maintained = maintained_build_;
  return maintained != build &&
         maintained_build_.compare_exchange_strong(maintained, build);
}

void TableIndex::EndMaintenance(int64_t build) {
  maintained_build_.compare_exchange_strong(build, 0);
}

void TableIndex::SetBack(const TableColumns& columns) {
  int32_t before = clock_;
  former_clock_ = std::max<int32_t>(former_clock_, before);
  int32_t clock = 0;
  for (const std::unique_ptr<DynamicTable>& table : tables_) {
    clock = std::max(clock, table->MostRecentUse(columns));
  }
  // A maintenance has its own time, whether it began before or meanwhile.
  if (maintained_build_ != num_builds_) {
    clock_.compare_exchange_strong(before, clock);
  }
  // Some rows may not have been through a maintenance since their last use.
  settled_before_ = clock;
}

void TableIndex::SetForward(int32_t last_use) {
  // Beside a maintenance, which sets both further, neither goes back.
  int32_t clock = clock_;
  while (last_use > clock) {
    if (clock_.compare_exchange_weak(clock, last_use)) {
      int32_t before = settled_before_;
      while (before < last_use &&
             !settled_before_.compare_exchange_weak(before, last_use)) {
      }
      return;
    }
  }
}

}  // namespace tf_syncrep
