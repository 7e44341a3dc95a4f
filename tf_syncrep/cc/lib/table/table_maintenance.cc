#include "tf_syncrep/cc/lib/table/table_maintenance.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"

namespace tf_syncrep {
namespace {

// So many rows are changed before locks are given up for a moment.
constexpr int64_t kRowsAtOnce = 4096;

}  // namespace

TableMaintenance::TableMaintenance(TableIndex* index, std::vector<Rules> rules,
                                   int32_t step)
    : index_(index),
      rules_(std::move(rules)),
      step_(step),
      last_clock_(index->clock()),
      num_builds_(index->num_builds()),
      has_begun_(index->TryBeginMaintenance()),
      num_evicted_(rules_.size()) {
  if (has_begun_) {
    index_->set_clock(static_cast<int32_t>(std::min<int64_t>(
        int64_t{step} + 1, std::numeric_limits<int32_t>::max())));
  }
}

TableMaintenance::~TableMaintenance() {
  PutBackResting();
  if (has_begun_) {
    index_->EndMaintenance(num_builds_);
  }
}

TableMaintenance::Next TableMaintenance::GoOn(const TableColumns& columns) {
  if (index_->num_builds() != num_builds_) {
    return Next::kAborted;
  }
  while (true) {
    switch (phase_) {
      case Phase::kWait:
        phase_ = Phase::kSettle;
        return Next::kWait;
      case Phase::kSettle:
        if (Settle(columns)) {
          return Next::kGoOn;
        }
        table_ = 0;
        phase_ = Phase::kTake;
        break;
      case Phase::kTake:
        if (table_ == index_->num_tables()) {
          return Next::kOver;
        }
        if (!TakeResting()) {
          return Next::kNoMemory;
        }
        phase_ = Phase::kFree;
        break;
      case Phase::kFree:
        num_rows_ = std::min(kRowsAtOnce, rested_.size() - num_freed_);
        if (num_rows_ > 0) {
          return Next::kChange;
        }
        phase_ = Phase::kPlan;
        break;
      case Phase::kPlan:
        if (!Plan(columns)) {
          return Next::kNoMemory;
        }
        phase_ = Phase::kEvict;
        break;
      case Phase::kEvict: {
        const DynamicTable& table = index_->table(table_);
        if (from_ < table.end_row()) {
          num_rows_ = table.Collect(columns, &eviction_, &from_, kRowsAtOnce,
                                    chosen_.data());
          return num_rows_ > 0 ? Next::kChange : Next::kGoOn;
        }
        ++table_;
        phase_ = Phase::kTake;
        break;
      }
    }
  }
}

const int32_t* TableMaintenance::rows() const {
  return phase_ == Phase::kFree ? rested_.data() + num_freed_ : chosen_.data();
}

bool TableMaintenance::Change(const TableColumns& columns, const void* vectors,
                              const std::function<void(int64_t)>& reset_slots) {
  if (index_->num_builds() != num_builds_) {
    return false;
  }
  DynamicTable& table = index_->table(table_);
  if (phase_ == Phase::kEvict) {
    num_evicted_[table_] +=
        table.Evict(columns, vectors, eviction_, rows(), num_rows_);
    return true;
  }
  for (int64_t i = 0; i < num_rows_; ++i) {
    const MutexLock lock(RowLocks::Global().Of(vectors, rows()[i]));
    reset_slots(rows()[i]);
  }
  table.Free(columns, vectors, rows(), num_rows_);
  num_freed_ += num_rows_;
  return true;
}

// If the clock was set back, as by a restore without the optimizer's state,
// rows count as used right now where their last uses are still to come.
bool TableMaintenance::Settle(const TableColumns& columns) {
  const bool is_set_back =
      std::max(last_clock_, index_->settled_before()) > index_->clock();
  for (; table_ < index_->num_tables(); ++table_) {
    DynamicTable& table = index_->table(table_);
    const bool has_to = is_set_back || rules_[table_].unused_for > 0;
    const int64_t end = has_to ? table.first_unused_row() : 0;
    const int64_t begin = std::max(from_, table.options().first_row);
    if (begin < end) {
      from_ = std::min(end, begin + kRowsAtOnce);
      table.Settle(columns, begin, from_, index_->settled_before(), last_clock_,
                   step_);
      return true;
    }
  }
  MoveLastUses(columns);
  index_->set_settled_before(index_->clock());
  return false;
}

// If last uses were assigned, as by weights of an earlier epoch, but the steps
// were not set back, rows would have been unused in the steps since that state.
// A state of since the last maintenance, as when some rows were freed, has its
// clock, or the step before if nothing was used since; it is no earlier one.
// No row may be moved twice: so this is not done in steps.
void TableMaintenance::MoveLastUses(const TableColumns& columns) {
  const int32_t settled_before = index_->settled_before();
  const int32_t former_clock = index_->former_clock();
  index_->forget_former_clock();
  if (former_clock > index_->clock() || settled_before >= former_clock - 1) {
    return;
  }
  for (int64_t i = 0; i < index_->num_tables(); ++i) {
    if (rules_[i].unused_for > 0) {
      index_->table(i).MoveLastUses(columns, settled_before,
                                    step_ - settled_before);
    }
  }
}

bool TableMaintenance::TakeResting() {
  DynamicTable& table = index_->table(table_);
  bool has_memory;
  build_ = table.build();
  num_freed_ = 0;
  rested_ = table.TakeResting(&has_memory);
  return has_memory;
}

void TableMaintenance::PutBackResting() {
  if (num_freed_ < rested_.size()) {
    index_->table(table_).PutBackResting(rested_.data() + num_freed_,
                                         rested_.size() - num_freed_, build_);
  }
}

bool TableMaintenance::Plan(const TableColumns& columns) {
  const DynamicTable& table = index_->table(table_);
  from_ = table.options().first_row;
  return chosen_.Allocate(kRowsAtOnce) &&
         table.PlanEviction(columns, step_, rules_[table_].unused_for,
                            rules_[table_].order, &eviction_);
}

}  // namespace tf_syncrep
