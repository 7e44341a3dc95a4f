// TableMaintenance frees rows that have rested, and evicts others.

#ifndef TF_SYNCREP_CC_LIB_TABLE_TABLE_MAINTENANCE_H_
#define TF_SYNCREP_CC_LIB_TABLE_TABLE_MAINTENANCE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/table/dynamic_table.h"
#include "tf_syncrep/cc/lib/table/table_columns.h"
#include "tf_syncrep/cc/lib/table/table_index.h"

namespace tf_syncrep {

// One maintenance of a part, step by step, so that others get to the variables
// in between. Its caller holds the shared locks of all variables, but where it
// is asked to give them up, and may stop after any step: what was done is whole
// then. Rows that still have to be freed go on resting.
//
// First it sets the clock. Then it waits for whoever has held the locks since
// before: rows that have rested until then are known to nobody any more. Last
// uses are settled, since a row may have been used until right now, although
// its use has the time of the last maintenance. Those of an earlier state, to
// which variables but not steps were set back, are moved forward. Rows that
// have rested become free, with initial slots, and others are evicted and rest.
class TableMaintenance {
 public:
  struct Rules {
    DynamicTable::Order order;
    int64_t unused_for;  // 0 for no such rows
  };

  enum class Next : uint8_t {
    // The caller gives up its locks, takes that of the vectors exclusively for
    // a moment, and takes its locks again.
    kWait,
    kGoOn,    // the caller may be cancelled here
    kChange,  // the caller keeps rows() for checkpoints, and calls Change()
    kNoMemory,
    kAborted,  // the index was made anew meanwhile, and is another one now
    kOver,
  };

  // Begins it, after `step` updates. `rules` are those of each table. The
  // caller holds its locks.
  TableMaintenance(TableIndex* index, std::vector<Rules> rules, int32_t step);
  ~TableMaintenance();
  TableMaintenance(const TableMaintenance&) = delete;
  TableMaintenance& operator=(const TableMaintenance&) = delete;

  // Whether it has begun. It has not if another one is under way: two at once
  // would free what has only just begun to rest. The caller then does nothing.
  bool has_begun() const { return has_begun_; }

  // Takes the next step, and says what the caller has to do then.
  [[nodiscard]] Next GoOn(const TableColumns& columns);

  // The rows that are about to change, all of them of table().
  const int32_t* rows() const;
  int64_t num_rows() const { return num_rows_; }
  int64_t table() const { return table_; }

  // Changes rows(). `reset_slots(row)` sets all slots of a row to their initial
  // values. Changes nothing and returns false if the index was made anew since
  // rows() were chosen.
  [[nodiscard]] bool Change(const TableColumns& columns, const void* vectors,
                            const std::function<void(int64_t)>& reset_slots);

  const std::vector<int64_t>& num_evicted() const { return num_evicted_; }

 private:
  enum class Phase : uint8_t { kWait, kSettle, kTake, kFree, kPlan, kEvict };

  // Settles some rows. Returns whether there may be more.
  bool Settle(const TableColumns& columns);
  // Moves last uses that come from an earlier state forward to this time.
  void MoveLastUses(const TableColumns& columns);
  // Each of these returns false if there is no memory.
  bool TakeResting();
  bool Plan(const TableColumns& columns);
  void PutBackResting();

  TableIndex* const index_;
  const std::vector<Rules> rules_;
  const int32_t step_;
  const int32_t last_clock_;
  const int64_t num_builds_;  // the index's, when this began
  const bool has_begun_;
  Phase phase_ = Phase::kWait;
  int64_t table_ = 0;
  int64_t from_ = 0;      // the row at which to go on
  int64_t num_rows_ = 0;  // that are about to change
  // Rows of the table that are to be freed, how many of them are free already,
  // and the table's build when they were taken.
  Array<int32_t> rested_;
  int64_t num_freed_ = 0;
  int64_t build_ = 0;
  DynamicTable::Eviction eviction_;
  Array<int32_t> chosen_;  // rows that are to be evicted
  std::vector<int64_t> num_evicted_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_TABLE_MAINTENANCE_H_
