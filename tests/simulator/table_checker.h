// The rules of a table that grows, checked on what its variables hold.

#ifndef TESTS_SIMULATOR_TABLE_CHECKER_H_
#define TESTS_SIMULATOR_TABLE_CHECKER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/simulator/schedule.h"
#include "tf_syncrep/cc/lib/table/table_columns.h"
#include "tf_syncrep/cc/lib/table/table_index.h"

namespace tf_syncrep::simulator {

// The variables of a part. Vectors and slots have one element each.
struct TableVariables {
  static constexpr double kInitialSlot = 0.5;

  explicit TableVariables(int64_t num_rows)
      : keys(num_rows),
        uses(num_rows),
        vectors(num_rows),
        slots(num_rows, kInitialSlot) {}

  TableColumns columns() { return {keys.data(), uses.data()}; }
  int64_t num_rows() const { return static_cast<int64_t>(keys.size()); }

  std::vector<int64_t> keys;
  std::vector<uint64_t> uses;
  std::vector<double> vectors;
  std::vector<double> slots;
};

// Follows one part, which has one table, step by step.
//
//   - A key has one row at most, and a lookup finds it.
//   - A row that gets a key was free; its vector and its slot are initial. From
//     then on they are what the gradients of just this key have made of them.
//   - A gradient is written if its key still has its row, and otherwise it is
//     dropped. It never reaches a row that another key has, or is about to get.
//   - A lookup reads its own keys' rows alone.
//   - A row in use is evicted only by a maintenance, only if its rules say so,
//     and rests. Only a later maintenance frees it.
//   - What is restored is what was saved.
//   - The counters are what they should be, and no row is lost.
class TableChecker {
 public:
  // What may happen to rows in a step.
  enum class Step : uint8_t { kOther, kAdds, kMaintains };

  struct Key {
    int64_t row;
    double vector;
    double slot;
    int64_t used_at;  // how many updates had been made at its last use
  };
  // What it knows, as of the time of a checkpoint.
  struct State {
    std::map<int64_t, Key> keys;
    // The key that a row has, or had before it was evicted; -1 if there is
    // none. Keys are at least 0.
    std::vector<int64_t> owners;
  };

  TableChecker(const Setup& setup, TableVariables* variables,
               TableIndex* index);

  // To be called after each step, when `num_updates` were made. The index may
  // be out of date after a restore.
  void See(Step step, int64_t num_updates, bool is_built);

  // A lookup has found these rows, and has used them.
  void SeeFound(const std::vector<int64_t>& keys,
                const std::vector<int32_t>& rows, bool uses,
                int64_t num_updates);
  // A lookup, by its number, has taken rows, and has given them away.
  void SeeTaken(int64_t lookup, const int32_t* rows, int64_t size);
  void SeeGivenBack(int64_t lookup);
  void SeeRead(int64_t key, int32_t row, double vector);
  // A gradient has passed the check, or not.
  void SeeCheck(int64_t key, int32_t row, bool is_kept);
  void SeeWritten(int64_t key, int32_t row, double gradient);
  void SeeMaintenance(int64_t step) { maintained_at_ = step; }
  void SeeRestored(const State& state);

  void Expect(bool holds, const std::string& rule);

  // To be called when no lookup is under way.
  void CheckFreeRows();

  const State& state() const { return state_; }
  // The first rule that was broken; empty if there is none.
  const std::string& error() const { return error_; }

 private:
  struct Row {
    int64_t key;
    RowUse use;
  };

  void SeeRow(Step step, int64_t row, const Row& before, const Row& now);
  double InitialVector(int64_t key) const;

  const Setup setup_;
  TableVariables& variables_;
  TableIndex& index_;
  std::string error_;
  State state_;
  std::vector<Row> seen_;             // the rows after the last step
  std::map<int64_t, int64_t> taken_;  // lookups by rows that they have taken
  int64_t num_updates_ = 0;
  int64_t maintained_at_ = 0;
  int64_t num_evicted_ = 0;
  int64_t num_admitted_ = 0;
  int64_t num_dropped_ = 0;
};

// A checkpoint of a part, and what the checker knows of it.
struct SavedTable {
  TableVariables variables;
  int64_t num_updates;
  TableChecker::State checked;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_TABLE_CHECKER_H_
