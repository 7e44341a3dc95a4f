#include "tests/simulator/table_checker.h"

#include <set>

namespace tf_syncrep::simulator {
namespace {

std::string RowText(int64_t row) { return "row " + std::to_string(row); }

bool IsFree(RowUse use) { return use.last_use == 0 && use.count == 0; }

}  // namespace

TableChecker::TableChecker(const Setup& setup, TableVariables* variables,
                           TableIndex* index)
    : setup_(setup), variables_(*variables), index_(*index) {
  state_.owners.assign(variables_.num_rows(), -1);
  seen_.assign(variables_.num_rows(), {0, {0, 0}});
}

void TableChecker::Expect(bool holds, const std::string& rule) {
  if (!holds && error_.empty()) {
    error_ = "table: " + rule;
  }
}

double TableChecker::InitialVector(int64_t key) const {
  double vector;
  index_.initial_values(0).Draw(key, 1, &vector);
  return vector;
}

void TableChecker::See(Step step, int64_t num_updates, bool is_built) {
  num_updates_ = num_updates;
  const TableColumns columns = variables_.columns();
  for (int64_t row = 0; row < variables_.num_rows(); ++row) {
    const Row now = {columns.key(row), columns.use(row)};
    SeeRow(step, row, seen_[row], now);
    seen_[row] = now;
    const auto known = state_.keys.find(now.key);
    if (now.use.is_in_use() && known != state_.keys.end()) {
      Expect(variables_.vectors[row] == known->second.vector &&
                 variables_.slots[row] == known->second.slot,
             "the vector and the slot of " + RowText(row) +
                 " are what the gradients of its key have made of them");
    }
  }
  if (is_built) {
    const DynamicTable::Counts counts = index_.table(0).counts();
    Expect(counts.in_use == static_cast<int64_t>(state_.keys.size()),
           "rows in use are counted");
    Expect(counts.admitted == num_admitted_, "admitted keys are counted");
    Expect(counts.evicted == num_evicted_, "evicted rows are counted");
    Expect(counts.dropped == num_dropped_, "dropped gradients are counted");
  }
}

void TableChecker::SeeRow(Step step, int64_t row, const Row& before,
                          const Row& now) {
  const bool was_in_use = before.use.is_in_use();
  const bool is_in_use = now.use.is_in_use();
  if (is_in_use && was_in_use) {
    Expect(now.key == before.key, RowText(row) + " keeps its key");
  } else if (is_in_use) {
    Expect(step == Step::kAdds && IsFree(before.use) && taken_.count(row) > 0,
           RowText(row) + ", which gets a key, was free");
    const Key key = {row, InitialVector(now.key), TableVariables::kInitialSlot,
                     num_updates_};
    Expect(state_.keys.emplace(now.key, key).second, "a key has one row");
    state_.owners[row] = now.key;
    ++num_admitted_;
  } else if (was_in_use) {
    Expect(step == Step::kMaintains && now.use.rests(),
           RowText(row) + ", which loses its key, rests");
    const int64_t unused = maintained_at_ - state_.keys[before.key].used_at;
    Expect(setup_.least_recent ||
               (setup_.unused_for > 0 && unused > setup_.unused_for),
           "no row is evicted early: " + RowText(row) + " was used " +
               std::to_string(unused) + " updates ago");
    state_.keys.erase(before.key);
    ++num_evicted_;
  } else if (before.use.rests() && !now.use.rests()) {
    Expect(step == Step::kMaintains && IsFree(now.use),
           RowText(row) + ", which rests, becomes free in a maintenance");
    state_.owners[row] = -1;
  } else {
    Expect(before.use.rests() || IsFree(now.use),
           RowText(row) + " is used, free, or rests");
  }
}

void TableChecker::SeeFound(const std::vector<int64_t>& keys,
                            const std::vector<int32_t>& rows, bool uses,
                            int64_t num_updates) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto known = state_.keys.find(keys[i]);
    if (known == state_.keys.end()) {
      Expect(rows[i] < 0, "a key without a row is not found");
      continue;
    }
    Expect(rows[i] == known->second.row, "a key that has a row is found");
    if (uses) {
      known->second.used_at = num_updates;
    }
  }
}

void TableChecker::SeeTaken(int64_t lookup, const int32_t* rows, int64_t size) {
  const TableColumns columns = variables_.columns();
  for (int64_t i = 0; i < size; ++i) {
    Expect(
        IsFree(columns.use(rows[i])) && taken_.emplace(rows[i], lookup).second,
        RowText(rows[i]) + ", which is taken, was free");
  }
}

void TableChecker::SeeGivenBack(int64_t lookup) {
  for (auto taken = taken_.begin(); taken != taken_.end();) {
    taken = taken->second == lookup ? taken_.erase(taken) : std::next(taken);
  }
}

void TableChecker::SeeRead(int64_t key, int32_t row, double vector) {
  const auto known = state_.keys.find(key);
  Expect(state_.owners[row] == key,
         "a lookup reads the vectors of its own keys alone");
  Expect(known == state_.keys.end() || known->second.row != row ||
             known->second.vector == vector,
         "a lookup reads a key's present vector");
}

void TableChecker::SeeCheck(int64_t key, int32_t row, bool is_kept) {
  const auto known = state_.keys.find(key);
  const bool has_row = known != state_.keys.end() && known->second.row == row;
  Expect(is_kept == has_row, "a gradient is kept if its key still has its row");
  num_dropped_ += is_kept ? 0 : 1;
}

void TableChecker::SeeWritten(int64_t key, int32_t row, double gradient) {
  Expect(state_.owners[row] == key && taken_.count(row) == 0,
         "a gradient reaches no row but that of its key");
  const auto known = state_.keys.find(key);
  if (known != state_.keys.end() && known->second.row == row) {
    known->second.vector += gradient;
    known->second.slot += 1;
  }
}

void TableChecker::SeeRestored(const State& state) {
  state_ = state;
  taken_.clear();
  const TableColumns columns = variables_.columns();
  for (int64_t row = 0; row < variables_.num_rows(); ++row) {
    seen_[row] = {columns.key(row), columns.use(row)};
  }
}

void TableChecker::CheckFreeRows() {
  DynamicTable& table = index_.table(0);
  const int64_t num_rows = variables_.num_rows();
  int64_t num_free = 0;
  int64_t num_resting = 0;
  for (const Row& row : seen_) {
    num_free += IsFree(row.use) ? 1 : 0;
    num_resting += row.use.rests() ? 1 : 0;
  }
  std::vector<int32_t> rows(num_rows);
  const int64_t taken = table.TakeFree(num_rows, rows.data());
  Expect(taken == num_free, "no row is lost: " + std::to_string(taken) +
                                " rows can be taken, where " +
                                std::to_string(num_free) + " are free");
  const std::set<int32_t> different(rows.begin(), rows.begin() + taken);
  Expect(static_cast<int64_t>(different.size()) == taken,
         "no row is free twice");
  table.GiveBack(rows.data(), taken, table.build());
  bool has_memory;
  const Array<int32_t> resting = table.TakeResting(&has_memory);
  Expect(resting.size() == num_resting,
         "no row that rests is lost: " + std::to_string(resting.size()) +
             " are known, where " + std::to_string(num_resting) + " rest");
  table.PutBackResting(resting.data(), resting.size(), table.build());
}

}  // namespace tf_syncrep::simulator
