// The tables of a part, each with a range of its rows, and their clock.

#ifndef TF_SYNCREP_CC_LIB_TABLE_TABLE_INDEX_H_
#define TF_SYNCREP_CC_LIB_TABLE_TABLE_INDEX_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_syncrep/cc/lib/sharder.h"
#include "tf_syncrep/cc/lib/table/dynamic_table.h"
#include "tf_syncrep/cc/lib/table/initial_values.h"
#include "tf_syncrep/cc/lib/table/table_columns.h"

namespace tf_syncrep {

struct TableOptions {
  std::string name;
  DynamicTable::Options rows;
  InitialKind initial_kind;
  double initial_first;
  double initial_second;
  int64_t seed;
};

// Several tables are stacked: each has a range of the rows of the columns. The
// columns have the contents of the tables, and the index is made from them.
class TableIndex {
 public:
  explicit TableIndex(const std::vector<TableOptions>& options);

  const std::vector<TableOptions>& options() const { return options_; }
  int64_t num_tables() const { return static_cast<int64_t>(tables_.size()); }
  DynamicTable& table(int64_t i) { return *tables_[i]; }
  const InitialValues& initial_values(int64_t i) const {
    return initial_values_[i];
  }

  int64_t num_rows() const { return num_rows_; }

  // The time of keys that are used now: the number of the first update after
  // the last maintenance.
  int32_t clock() const { return clock_; }
  void set_clock(int32_t clock) { clock_ = clock; }

  // If a row's last use is before this time, the row was used no later than
  // that use says. Other rows have not been through a maintenance since they
  // were used.
  int32_t settled_before() const { return settled_before_; }
  void set_settled_before(int32_t clock) { settled_before_ = clock; }

  // The highest clock before the index was made anew, if no maintenance has
  // moved last uses since; or 0.
  int32_t former_clock() const { return former_clock_; }
  void forget_former_clock() { former_clock_ = 0; }

  // Sets the clock forward to the last use of a row that comes from elsewhere.
  // The row may not have been through a maintenance since that use.
  void SetForward(int32_t last_use);

  // Sets the clock to the highest last use of a row in use, as Build() does it:
  // for rows that were given back the uses of an earlier state.
  void SetBack(const TableColumns& columns);

  // Returns whether a maintenance may begin: whether none has begun since the
  // index was made, but for those that have ended.
  [[nodiscard]] bool TryBeginMaintenance();
  // Ends the one that has begun in the build of this number.
  void EndMaintenance(int64_t build);

  // Returns how often the index was made.
  int64_t num_builds() const { return num_builds_; }

  // Makes the index from columns of num_rows() rows, while nobody else uses it.
  // Unless the status is kOk, `bad_table` and `bad_row` say where the columns
  // are those of no table, or where memory ran out.
  DynamicTable::BuildStatus Build(const TableColumns& columns, Sharder& sharder,
                                  int64_t* bad_table, int64_t* bad_row);

 private:
  const std::vector<TableOptions> options_;
  std::vector<std::unique_ptr<DynamicTable>> tables_;
  std::vector<InitialValues> initial_values_;
  int64_t num_rows_ = 0;
  std::atomic<int32_t> clock_{0};
  std::atomic<int32_t> settled_before_{0};
  std::atomic<int32_t> former_clock_{0};
  std::atomic<int64_t> num_builds_{0};
  // The build in which a maintenance is under way, or 0.
  std::atomic<int64_t> maintained_build_{0};
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_TABLE_INDEX_H_
