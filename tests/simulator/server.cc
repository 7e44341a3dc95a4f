#include "tests/simulator/server.h"

#include <cstddef>
#include <utility>

#include "tests/cc/inline_sharder.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep::simulator {
namespace {

OwnedBuffer Allocate(int64_t num_elements) {
  const std::shared_ptr<double[]> memory(new double[num_elements]());
  return {memory.get(), memory};
}

std::unique_ptr<Accumulator> MakeAccumulator(bool sparse) {
  if (!sparse) {
    return std::make_unique<Accumulator>(AccumulatorMode::kRound, [] {
      return std::make_unique<CpuDenseGradientSum<double>>();
    });
  }
  const auto memory = std::make_shared<SparseSumMemory>();
  return std::make_unique<Accumulator>(AccumulatorMode::kRound, [memory] {
    return std::make_unique<SparseGradientSum<double>>(memory);
  });
}

bool Add(const Gradient& gradient, bool sparse, GradientSum& sum,
         Sharder& sharder) {
  // Nobody else owns it, since it has come from another task.
  const auto size = static_cast<int64_t>(gradient.values.size());
  OwnedBuffer values = Allocate(size);
  std::copy(gradient.values.begin(), gradient.values.end(),
            static_cast<double*>(values.data));
  if (sparse) {
    Array<int64_t> rows;
    const bool there_is_memory =
        rows.Allocate(static_cast<int64_t>(gradient.rows.size()));
    std::copy(gradient.rows.begin(), gradient.rows.end(), rows.begin());
    return there_is_memory && static_cast<SparseGradientSum<double>&>(sum).Add(
                                  std::move(rows), kRowSize, values, sharder);
  }
  // Other pushes wait half of the time.
  return static_cast<DenseGradientSum<double>&>(sum).Add(
      values, size, Allocate, /*others_wait=*/gradient.values[0] > 0, sharder);
}

Gradient Finish(TakenGradients& taken, bool sparse) {
  InlineSharder sharder;
  GradientSum& sum = *taken.sum;
  Gradient mean;
  if (sparse) {
    SparseResult result;
    static_cast<SparseGradientSum<double>&>(sum).Finish(
        Reduction::kMean, taken.num_gradients, sharder, &result);
    const auto* rows = static_cast<const int64_t*>(result.rows.data);
    const auto* values = static_cast<const double*>(result.values.data);
    mean.rows.assign(rows, rows + result.num_rows);
    mean.values.assign(values, values + result.num_rows * kRowSize);
    return mean;
  }
  const OwnedBuffer result = static_cast<DenseGradientSum<double>&>(sum).Finish(
      taken.num_gradients, Allocate, sharder);
  const auto* values = static_cast<const double*>(result.data);
  mean.values.assign(values, values + kNumRows * kRowSize);
  return mean;
}

std::string CheckCountsOf(const AccumulatorStats& stats) {
  if (stats.pushed != stats.accepted + stats.stale) {
    return "accumulator: pushed = accepted + stale";
  }
  if (stats.accepted != stats.taken + stats.voided + stats.held) {
    return "accumulator: accepted = taken + voided + held";
  }
  return "";
}

}  // namespace

Server::Server(int number, const Setup& setup, SyncGate::Clock clock,
               Twin* twin, WatchedGate::Log log, WatchedQueue::Log queue_log,
               WatchedTable::Log table_log)
    : number_(number),
      setup_(setup),
      clock_(std::move(clock)),
      twin_(twin),
      log_(std::move(log)),
      queue_log_(std::move(queue_log)),
      table_log_(std::move(table_log)) {
  Make();
}

Server::~Server() { Crash(); }

bool Server::has_lost_variables() const {
  return !variables_.empty() && variables_.begin()->second.weights.empty();
}

void Server::Crash() {
  is_up_ = false;
  if (gate_ != nullptr) {
    if (!gate_->error().empty() && error_.empty()) {
      error_ = gate_->error();
    }
    gate_->Delete(/*last_call=*/0);
  }
  if (queue_ != nullptr) {
    queue_->Shutdown();
    if (!queue_->error().empty() && error_.empty()) {
      error_ = queue_->error();
    }
  }
  if (table_ != nullptr && error_.empty()) {
    error_ = table_->error();
  }
}

void Server::Restart() {
  ++life_;
  is_up_ = true;
  gate_ = nullptr;
  queue_ = nullptr;
  table_ = nullptr;
  variables_.clear();
  Make();
}

void Server::Make() {
  for (int v = number_; v < setup_.num_variables; v += setup_.num_servers) {
    Variable& variable = variables_[v];
    variable.sparse = twin_->IsSparse(v);
    variable.accumulator = MakeAccumulator(variable.sparse);
  }
  step_ = 0;
  if (number_ == 0) {
    MakeGate();
  }
}

void Server::MakeGate() {
  SyncGateOptions options;
  options.quorum = setup_.quorum;
  options.total = setup_.total;
  options.strict = setup_.strict;
  options.gathers = setup_.gathers;
  options.lease = std::chrono::milliseconds(setup_.lease);
  options.start_lease = std::chrono::milliseconds(setup_.start_lease);
  options.updater_lease = std::chrono::milliseconds(setup_.updater_lease);
  // The numbers come after those of any earlier gate: no round takes less time.
  options.first_round = options.first_generation =
      std::chrono::duration_cast<std::chrono::milliseconds>(clock_()).count();
  gate_ = std::make_unique<WatchedGate>(options, clock_, twin_, log_);
}

void Server::MakeQueue() {
  WorkQueueOptions options;
  options.num_items = setup_.num_items;
  options.num_epochs = setup_.num_epochs;
  options.shuffle = setup_.shuffle;
  options.seed = static_cast<uint64_t>(setup_.num_items);
  options.lease = std::chrono::milliseconds(setup_.item_lease);
  // The tickets come after those of any earlier queue: no item takes less time.
  options.first_ticket = clock_().count();
  queue_ = std::make_unique<WatchedQueue>(options, clock_, queue_log_);
}

void Server::ResetTable(const Call& call) {
  if (table_ == nullptr) {
    table_ = std::make_unique<WatchedTable>(setup_, clock_, table_log_);
  }
  if (call.restores && call.saved_table != nullptr) {
    table_->Restore(*call.saved_table);
  }
}

bool Server::Run(Call* call) { return table_->Run(call); }

void Server::Cancel(Call* call) {
  if (call->state == Call::State::kRuns) {
    table_->Cancel(call);
  } else if (call->kind != CallKind::kItem) {
    gate_->Cancel(call);
  } else if (queue_ != nullptr) {
    queue_->Cancel(call);
  }
}

SyncGate::Time Server::Poll() {
  SyncGate::Time next = SyncGate::Time::max();
  if (is_up_ && gate_ != nullptr) {
    next = std::min(next, gate_->Poll());
  }
  if (is_up_ && queue_ != nullptr) {
    next = std::min(next, queue_->Poll());
  }
  return next;
}

std::string Server::error() const {
  if (!error_.empty()) {
    return error_;
  }
  if (gate_ != nullptr && !gate_->error().empty()) {
    return gate_->error();
  }
  if (queue_ != nullptr && !queue_->error().empty()) {
    return queue_->error();
  }
  return table_ != nullptr ? table_->error() : "";
}

void Server::Handle(Call* call) {
  call->state = Call::State::kComesBack;
  switch (call->kind) {
    case CallKind::kItem:
    case CallKind::kSave:
    case CallKind::kRestore:
    case CallKind::kLimit:
      if (queue_ == nullptr) {
        call->status = {Call::kNotFound, "There is no such work queue."};
      } else {
        queue_->Handle(call);
      }
      return;
    case CallKind::kMaintain:
    case CallKind::kSaveTable:
    case CallKind::kLoadTable:
    case CallKind::kFind:
    case CallKind::kGradient:
      if (table_ == nullptr) {
        call->status = {Call::kNotFound, "There is no such table."};
      } else {
        table_->Handle(call);
      }
      return;
    case CallKind::kReset:
      Reset(call);
      return;
    case CallKind::kRead:
    case CallKind::kPush:
    case CallKind::kTake: {
      Variable& variable = variables_.at(call->variable);
      if (variable.weights.empty()) {
        call->status = {GateStatus::kFailedPrecondition,
                        "The variable is not initialized."};
        return;
      }
      if (call->kind == CallKind::kRead) {
        call->weights = variable.weights;
      } else if (call->kind == CallKind::kPush) {
        Push(*call, &variable);
      } else {
        Take(call, &variable);
      }
      CheckCounts(variable);
      return;
    }
    default:
      gate_->Handle(call);
      return;
  }
}

void Server::Reset(Call* call) {
  for (auto& [number, variable] : variables_) {
    // A chief that comes back finds the accumulators of the one before.
    variable.accumulator->SetStep(0);
    if (call->restores || variable.weights.empty()) {
      variable.weights = Weights(kNumRows * kRowSize);
      twin_->Restore(number, variable.weights);
    }
    CheckCounts(variable);
  }
  if (call->restores) {
    step_ = 0;
  }
  if (gate_ != nullptr && gate_->is_deleted() && call->flag) {
    MakeGate();
  }
  if (has_queue()) {
    if (queue_ == nullptr) {
      MakeQueue();
    }
    if (call->restores && call->saved != nullptr) {
      queue_->Restore(*call->saved);
    }
  }
  if (has_table()) {
    ResetTable(*call);
  }
  call->step = step_;
}

void Server::Push(const Call& call, Variable* variable) {
  const Gradient& gradient = call.contribution->gradients[call.variable];
  InlineSharder sharder;
  std::vector<int64_t> held_shape;
  const std::vector<int64_t> shape = {kRowSize};
  const Accumulator::PushResult result = variable->accumulator->Push(
      call.round, shape,
      [&](GradientSum& sum, bool /*others_wait*/) {
        return Add(gradient, variable->sparse, sum, sharder);
      },
      &held_shape);
  if (result != Accumulator::PushResult::kAccepted &&
      result != Accumulator::PushResult::kStale) {
    error_ = "a gradient of the right shape is pushed";
  }
}

void Server::Take(Call* call, Variable* variable) {
  TakenGradients taken;
  int64_t held_round = 0;
  int64_t num_held = 0;
  if (!variable->accumulator->TakeRound(call->round, call->count, &taken,
                                        &held_round, &num_held)) {
    call->status = {GateStatus::kFailedPrecondition,
                    "The accumulator holds " + std::to_string(num_held) +
                        " gradients of round " + std::to_string(held_round)};
    return;
  }
  const Gradient mean = Finish(taken, variable->sparse);
  ApplyMean(mean, variable->sparse, &variable->weights);
  step_ += call->variable == 0 ? 1 : 0;
  call->step = step_;
  twin_->Take(call->variable, call->round, mean, variable->weights);
}

void Server::CheckCounts(const Variable& variable) {
  const std::string broken = CheckCountsOf(variable.accumulator->stats());
  if (!broken.empty() && error_.empty()) {
    error_ = broken;
  }
}

std::string Server::Leftovers() {
  if (table_ != nullptr) {
    table_->CheckFreeRows();
    if (!table_->error().empty()) {
      return table_->error();
    }
  }
  if (gate_ == nullptr) {
    return "";
  }
  const SyncGateStats stats = gate_->Stats();
  return stats.in_flight > 0 ? "a contribution is in flight for ever" : "";
}

}  // namespace tf_syncrep::simulator
