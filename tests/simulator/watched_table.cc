#include "tests/simulator/watched_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/cc/inline_sharder.h"

namespace tf_syncrep::simulator {
namespace {

using Next = TableMaintenance::Next;

// The time for which a checkpoint is being written.
constexpr SyncGate::Time kWriting = std::chrono::milliseconds(200);

std::vector<TableOptions> Options(const Setup& setup) {
  return {{"table",
           {0, setup.max_rows, static_cast<int>(setup.min_count)},
           InitialKind::kUniform,
           0,
           1,
           /*seed=*/1}};
}

template <typename T>
std::string ListText(const std::vector<T>& list) {
  std::string text;
  for (const T& element : list) {
    text += " " + std::to_string(element);
  }
  return text;
}

}  // namespace

WatchedTable::WatchedTable(const Setup& setup, SyncGate::Clock clock, Log log)
    : setup_(setup),
      clock_(std::move(clock)),
      log_(std::move(log)),
      variables_(setup.max_rows),
      index_(Options(setup)),
      checker_(setup, &variables_, &index_) {}

void WatchedTable::Say(const Op& op, const std::string& what) {
  if (log_) {
    log_(Text(op.call->from) + " " + what);
  }
}

WatchedTable::Ops::iterator WatchedTable::FindOp(const Call* call) {
  return std::find_if(ops_.begin(), ops_.end(),
                      [call](const Op& op) { return op.call == call; });
}

void WatchedTable::Handle(Call* call) {
  switch (call->kind) {
    case CallKind::kSaveTable:
      Save(call);
      return;
    case CallKind::kLoadTable:
      Restore(*call->saved_table);
      return;
    default:
      call->state = Call::State::kRuns;
      ops_.push_back({call});
      return;
  }
}

void WatchedTable::Save(Call* call) {
  auto saved = std::make_shared<SavedTable>(
      SavedTable{variables_, num_updates_, checker_.state()});
  if (index_.settled_before() != index_.clock()) {
    // In the middle of a maintenance nothing says which uses are not settled.
    for (auto& [key, known] : saved->checked.keys) {
      const int64_t last_use = variables_.columns().use(known.row).last_use;
      known.used_at = std::min(known.used_at, last_use);
    }
  }
  call->saved_table = std::move(saved);
  ++num_snapshots_;
  written_until_ = clock_() + kWriting;
}

void WatchedTable::Cancel(Call* call) {
  const auto op = FindOp(call);
  if (op != ops_.end()) {
    op->is_cancelled = true;
  }
}

bool WatchedTable::Run(Call* call) {
  const auto op = FindOp(call);
  step_ = TableChecker::Step::kOther;
  const bool has_moved = call->kind == CallKind::kFind ? RunLookup(&*op)
                         : call->kind == CallKind::kGradient
                             ? RunGradient(&*op)
                             : RunMaintenance(&*op);
  if (op->call == nullptr) {
    ops_.erase(op);
  }
  checker_.See(step_, num_updates_, is_built_);
  if (step_ == TableChecker::Step::kAdds) {
    checker_.SeeGivenBack(call->number);
  }
  return has_moved;
}

void WatchedTable::Restore(const SavedTable& saved) {
  // Whoever holds the locks gives them up first. A gradient between its check
  // and its update does so, too: nobody restores in the middle of a step.
  std::vector<Call*> calls;
  for (const Op& op : ops_) {
    calls.push_back(op.call);
  }
  for (Call* call : calls) {
    for (auto op = FindOp(call);
         op != ops_.end() && (op->holds || op->phase == Phase::kUpdate);
         op = FindOp(call)) {
      Run(call);
    }
  }
  variables_ = saved.variables;
  num_updates_ = saved.num_updates;
  is_built_ = false;
  checker_.SeeRestored(saved.checked);
}

void WatchedTable::CheckFreeRows() {
  if (is_built_) {
    checker_.CheckFreeRows();
  }
}

void WatchedTable::Lock(Op* op) {
  op->holds = true;
  ++num_holders_;
  if (!is_built_) {
    InlineSharder sharder;
    int64_t table;
    int64_t row;
    const DynamicTable::BuildStatus status =
        index_.Build(variables_.columns(), sharder, &table, &row);
    checker_.Expect(status == DynamicTable::BuildStatus::kOk,
                    "what was saved can be restored");
    is_built_ = true;
  }
}

void WatchedTable::Unlock(Op* op) {
  op->holds = false;
  --num_holders_;
}

bool WatchedTable::Keep(Op* op) {
  if (clock_() >= written_until_ || op->snapshot == num_snapshots_) {
    return false;
  }
  op->snapshot = num_snapshots_;
  Unlock(op);
  return true;
}

void WatchedTable::End(Op* op, GateStatus status) {
  if (op->holds) {
    Unlock(op);
  }
  if (op->new_rows != nullptr) {
    op->new_rows = nullptr;
    checker_.SeeGivenBack(op->call->number);
  }
  op->call->state = Call::State::kComesBack;
  op->call->status = std::move(status);
  op->call = nullptr;
}

// A lookup for training, as TableFind does it.
bool WatchedTable::RunLookup(Op* op) {
  InlineSharder sharder;
  const TableColumns columns = variables_.columns();
  double* const vectors = variables_.vectors.data();
  switch (op->phase) {
    case Phase::kBegin:
      Lock(op);
      [[fallthrough]];
    case Phase::kFind: {
      Find(op, /*uses=*/true);
      const bool is_new =
          std::count(op->rows.begin(), op->rows.end(),
                     static_cast<int32_t>(DynamicTable::kAdmitted)) > 0;
      op->phase = is_new ? Phase::kTake : Phase::kRead;
      return true;
    }
    case Phase::kTake:
      Take(op);
      op->builds = index_.num_builds();
      op->phase = Keep(op) ? Phase::kRelock : Phase::kDraw;
      return true;
    case Phase::kRelock:
      if (op->is_cancelled) {
        End(op, {GateStatus::kCancelled, "The step was cancelled."});
        return true;
      }
      Lock(op);
      op->was_unlocked = true;
      if (Keep(op)) {
        return true;
      }
      op->phase = Phase::kDraw;
      if (index_.num_builds() != op->builds) {
        op->new_rows = nullptr;
        op->phase = Phase::kFind;
      }
      return true;
    case Phase::kDraw:
      op->new_rows->Draw(1, vectors, sharder);
      op->phase = Phase::kAdd;
      return true;
    case Phase::kAdd: {
      const bool has_memory = op->new_rows->Add(
          columns, vectors, {index_.clock(), 1}, op->rows.data(), sharder);
      checker_.Expect(has_memory, "there is memory");
      op->new_rows = nullptr;
      step_ = TableChecker::Step::kAdds;
      op->phase = op->was_unlocked ? Phase::kFindAgain : Phase::kRead;
      return true;
    }
    case Phase::kFindAgain:
      Find(op, /*uses=*/false);
      op->phase = Phase::kRead;
      return true;
    default: {
      const std::vector<int64_t>& keys = op->call->keys;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (op->rows[i] >= 0) {
          checker_.SeeRead(keys[i], op->rows[i], vectors[op->rows[i]]);
        }
      }
      const auto num_missing =
          std::count(op->rows.begin(), op->rows.end(),
                     static_cast<int32_t>(DynamicTable::kNoRow));
      index_.table(0).CountWithoutRow(num_missing, op->num_refused);
      Say(*op, "reads rows" + ListText(op->rows));
      op->call->rows = op->rows;
      End(op);
      return true;
    }
  }
}

void WatchedTable::Find(Op* op, bool uses) {
  InlineSharder sharder;
  const std::vector<int64_t>& keys = op->call->keys;
  const auto size = static_cast<int64_t>(keys.size());
  op->rows.resize(keys.size());
  bool has_memory;
  if (uses) {
    index_.table(0).FindAndUse(variables_.columns(), index_.clock(),
                               keys.data(), size, op->rows.data(), sharder,
                               &has_memory);
  } else {
    index_.table(0).Find(variables_.columns(), keys.data(), size,
                         op->rows.data(), sharder, &has_memory);
  }
  checker_.Expect(has_memory, "there is memory");
  checker_.SeeFound(keys, op->rows, uses, num_updates_);
  Say(*op, "looks up keys" + ListText(keys) + ": rows" + ListText(op->rows));
}

void WatchedTable::Take(Op* op) {
  op->new_rows = std::make_unique<NewRows>(&index_);
  bool has_memory =
      op->new_rows->Allocate(static_cast<int64_t>(op->rows.size()));
  for (size_t i = 0; i < op->rows.size(); ++i) {
    if (op->rows[i] == DynamicTable::kAdmitted) {
      op->new_rows->Append(op->call->keys[i], static_cast<int64_t>(i));
      op->rows[i] = DynamicTable::kNoRow;
    }
  }
  has_memory &= op->new_rows->Take(0, &op->num_refused);
  checker_.Expect(has_memory, "there is memory");
  const int32_t* const rows = op->new_rows->free_rows();
  checker_.SeeTaken(op->call->number, rows, op->new_rows->size());
  Say(*op, "takes rows" + ListText(std::vector<int32_t>(
                              rows, rows + op->new_rows->size())));
}

// A gradient of a lookup, as TableGradient and an optimizer's update of rows do
// it. Between these two ops it has no lock.
bool WatchedTable::RunGradient(Op* op) {
  switch (op->phase) {
    case Phase::kBegin:
      Lock(op);
      Check(op);
      Unlock(op);
      op->num_maintenances = num_maintenances_;
      op->phase = Phase::kUpdate;
      return true;
    case Phase::kUpdate:
      if (op->is_cancelled) {
        End(op, {GateStatus::kCancelled, "The step was cancelled."});
        return true;
      }
      Lock(op);
      op->phase = Phase::kWrite;
      return true;
    default:
      if (op->num_written < op->kept.size()) {
        const auto [row, place] = op->kept[op->num_written++];
        variables_.vectors[row] += op->call->gradient;
        variables_.slots[row] += 1;
        checker_.SeeWritten(op->call->keys[place], row, op->call->gradient);
        Say(*op, "writes its gradient to row " + std::to_string(row));
        return true;
      }
      ++num_updates_;
      End(op);
      return true;
  }
}

void WatchedTable::Check(Op* op) {
  const Call& call = *op->call;
  std::vector<int32_t> kept(call.keys.size());
  int64_t bad = -1;
  const int64_t num_kept = index_.table(0).FindKept(
      variables_.columns(), call.keys.data(), call.rows.data(), 0,
      static_cast<int64_t>(call.keys.size()), kept.data(), &bad);
  checker_.Expect(num_kept >= 0, "a lookup returns rows of the table");
  for (size_t i = 0; i < call.keys.size(); ++i) {
    if (kept[i] >= 0) {
      op->kept.push_back({kept[i], i});
    }
    if (call.rows[i] >= 0) {
      checker_.SeeCheck(call.keys[i], call.rows[i], kept[i] >= 0);
    }
  }
  Say(*op, "has a gradient for keys" + ListText(call.keys) + " in rows" +
               ListText(call.rows) + ", of which it keeps " +
               std::to_string(num_kept));
}

// As TableMaintain does it.
bool WatchedTable::RunMaintenance(Op* op) {
  switch (op->phase) {
    case Phase::kBegin:
      Lock(op);
      op->maintenance = std::make_unique<TableMaintenance>(
          &index_,
          std::vector<TableMaintenance::Rules>{
              {setup_.least_recent ? DynamicTable::Order::kLeastRecent
                                   : DynamicTable::Order::kNone,
               setup_.unused_for}},
          static_cast<int32_t>(num_updates_));
      if (!op->maintenance->has_begun()) {
        Say(*op, "finds that the table is being maintained");
        op->maintenance = nullptr;
        End(op, {GateStatus::kFailedPrecondition, "Another is under way."});
        return true;
      }
      checker_.SeeMaintenance(num_updates_);
      Say(*op, "maintains the table");
      op->phase = Phase::kGoOn;
      return true;
    case Phase::kWait:
      if (!MayHaveAll()) {
        return false;
      }
      Say(*op, "has had the locks");
      Lock(op);
      op->phase = Phase::kGoOn;
      return true;
    case Phase::kRelock:
      Lock(op);
      op->phase = Keep(op) ? Phase::kRelock : Phase::kChange;
      return true;
    case Phase::kChange: {
      const int64_t num_evicted = op->maintenance->num_evicted()[0];
      const std::vector<int32_t> rows(
          op->maintenance->rows(),
          op->maintenance->rows() + op->maintenance->num_rows());
      if (!op->maintenance->Change(
              variables_.columns(), variables_.vectors.data(),
              [this](int64_t row) {
                variables_.slots[row] = TableVariables::kInitialSlot;
              })) {
        EndMaintenance(op, {GateStatus::kAborted, "Keys were assigned."});
        return true;
      }
      step_ = TableChecker::Step::kMaintains;
      Say(*op, op->maintenance->num_evicted()[0] > num_evicted
                   ? "evicts rows" + ListText(rows)
                   : "has changed rows" + ListText(rows));
      op->phase = Phase::kGoOn;
      return true;
    }
    default:
      break;
  }
  const Next next = op->maintenance->GoOn(variables_.columns());
  checker_.Expect(next != Next::kNoMemory, "there is memory");
  if (next == Next::kWait) {
    Unlock(op);
    op->phase = Phase::kWait;
  } else if (next == Next::kAborted) {
    EndMaintenance(op, {GateStatus::kAborted, "Keys were assigned."});
  } else if (next == Next::kOver || next == Next::kNoMemory) {
    EndMaintenance(op);
  } else if (op->is_cancelled) {
    EndMaintenance(op, {GateStatus::kCancelled, "The step was cancelled."});
  } else if (next == Next::kChange) {
    op->phase = Keep(op) ? Phase::kRelock : Phase::kChange;
  }
  return true;
}

// Whether a maintenance gets the exclusive lock. A gradient that stands still
// between its check and its update for more than one maintenance is not
// noticed, as the documentation says.
bool WatchedTable::MayHaveAll() const {
  return num_holders_ == 0 &&
         std::none_of(ops_.begin(), ops_.end(), [this](const Op& other) {
           return other.phase == Phase::kUpdate &&
                  other.num_maintenances < num_maintenances_;
         });
}

void WatchedTable::EndMaintenance(Op* op, GateStatus status) {
  ++num_maintenances_;
  op->maintenance = nullptr;
  End(op, std::move(status));
}

}  // namespace tf_syncrep::simulator
