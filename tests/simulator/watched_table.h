// A part of a real table that grows, on a parameter server, and what the
// kernels do with it, step by step, followed by a checker.

#ifndef TESTS_SIMULATOR_WATCHED_TABLE_H_
#define TESTS_SIMULATOR_WATCHED_TABLE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulator/call.h"
#include "tests/simulator/schedule.h"
#include "tests/simulator/table_checker.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"
#include "tf_syncrep/cc/lib/table/new_rows.h"
#include "tf_syncrep/cc/lib/table/table_index.h"
#include "tf_syncrep/cc/lib/table/table_maintenance.h"

namespace tf_syncrep::simulator {

// A call begins an op, which then runs step by step, with any others in
// between. The locks that ops hold are those of TensorFlow's variables. All
// that an op needs are modelled as one: it is shared, but for the moment of a
// maintenance, and for a restore.
class WatchedTable {
 public:
  using Log = std::function<void(const std::string&)>;

  // `log`, if there is one, is told what ops do.
  WatchedTable(const Setup& setup, SyncGate::Clock clock, Log log);

  // Executes the call, or begins its op.
  void Handle(Call* call);
  // Has the call's op take a step. False if it has to wait for others.
  bool Run(Call* call);
  // The step to which the call belongs is cancelled.
  void Cancel(Call* call);
  // Waits for the locks, and assigns all variables.
  void Restore(const SavedTable& saved);
  // To be called when all ops have ended.
  void CheckFreeRows();

  DynamicTable::Counts Counts() { return index_.table(0).counts(); }
  const std::string& error() const { return checker_.error(); }

 private:
  enum class Phase : uint8_t {
    kBegin,
    kFind,
    kTake,
    kRelock,
    kDraw,
    kAdd,
    kFindAgain,
    kRead,
    kUpdate,  // the gradient has passed the check, and its update begins
    kWrite,
    kGoOn,
    kWait,
    kChange,
  };

  struct Op {
    Call* call;
    Phase phase = Phase::kBegin;
    bool holds = false;  // the locks
    bool is_cancelled = false;
    bool was_unlocked = false;
    int64_t builds = 0;    // the index's, when it gave up its locks
    int64_t snapshot = 0;  // the last one that has kept its rows
    std::vector<int32_t> rows = {};
    std::unique_ptr<NewRows> new_rows = nullptr;
    int64_t num_refused = 0;
    // Rows to which the gradient is written, and the places of their keys.
    std::vector<std::pair<int32_t, size_t>> kept = {};
    size_t num_written = 0;
    int64_t num_maintenances = 0;  // that were over when the gradient came
    std::unique_ptr<TableMaintenance> maintenance = nullptr;
  };
  using Ops = std::list<Op>;

  Ops::iterator FindOp(const Call* call);
  bool RunLookup(Op* op);
  bool RunGradient(Op* op);
  bool RunMaintenance(Op* op);
  void Save(Call* call);
  void Find(Op* op, bool uses);
  void Take(Op* op);
  void Check(Op* op);
  void Lock(Op* op);
  void Unlock(Op* op);
  // Gives up the locks if a checkpoint that is being written has to keep rows
  // that are about to change. Returns whether it does.
  bool Keep(Op* op);
  bool MayHaveAll() const;
  void End(Op* op, GateStatus status = {});
  void EndMaintenance(Op* op, GateStatus status = {});
  void Say(const Op& op, const std::string& what);

  const Setup setup_;
  const SyncGate::Clock clock_;
  const Log log_;
  TableVariables variables_;
  // The index finds rows of the variables, as they were when it was built.
  TableIndex index_;
  bool is_built_ = false;
  int64_t num_updates_ = 0;
  int64_t num_maintenances_ = 0;  // that are over
  int64_t num_holders_ = 0;
  int64_t num_snapshots_ = 0;
  SyncGate::Time written_until_{0};
  TableChecker checker_;
  TableChecker::Step step_ = TableChecker::Step::kOther;
  Ops ops_;  // in the order in which they began
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_WATCHED_TABLE_H_
