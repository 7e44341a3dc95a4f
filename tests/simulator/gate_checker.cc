#include "tests/simulator/gate_checker.h"

#include <algorithm>
#include <utility>

namespace tf_syncrep::simulator {

using Kind = GateRecord::Kind;
using Verdict = GateRecord::Verdict;

void GateChecker::See(const GateRecord& record) {
  if (!error_.empty()) {
    return;
  }
  seen_ = &record;
  if (record.live >= 0) {
    live_ = record.live;
  }
  Expect(is_made_ == (record.kind != Kind::kMake), "a gate is made once");
  if (must_void_ && record.kind != Kind::kVoid &&
      record.kind != Kind::kExpire) {
    Expect(false, "an admitted contribution was given up: its round is void");
  }
  switch (record.kind) {
    case Kind::kMake:
      is_made_ = true;
      strict_ = record.strict;
      round_ = record.round;
      quorum_ = next_quorum_ = record.quorum;
      total_ = next_total_ = record.total;
      break;
    case Kind::kOpen:
      SeeOpen(record);
      break;
    case Kind::kAsk:
      SeeAsk(record);
      break;
    case Kind::kGrant:
      SeeGrant(record);
      break;
    case Kind::kRefuse:
      if (Worker* worker = Find(record)) {
        worker->wait = worker->wait == record.wait ? 0 : worker->wait;
      }
      break;
    case Kind::kAdmit:
      SeeAdmit(record);
      break;
    case Kind::kCommit:
      SeeCommit(record);
      break;
    case Kind::kAbort: {
      Worker* worker = Find(record);
      if (worker != nullptr && record.generation == generation_ &&
          record.round == round_) {
        Release(worker);
      }
      break;
    }
    case Kind::kReturn: {
      Worker* worker = Find(record);
      if (record.number < 0) {
        passes_ += record.generation == generation_ ? 1 : 0;
      } else if (worker != nullptr && worker->permit == record.number) {
        Release(worker);
      }
      break;
    }
    case Kind::kLeave: {
      const auto [entry, is_new] = workers_.try_emplace(record.worker);
      if (is_new) {
        entry->second.incarnation = record.incarnation;
      }
      [[fallthrough]];
    }
    case Kind::kExpire:
      if (Worker* worker = Find(record)) {
        Release(worker);
      }
      break;
    case Kind::kVoid:
    case Kind::kAdvance:
      SeeEndOfRound(record);
      break;
    case Kind::kWait:
      // The update of what was flushed may have reached some variables.
      must_void_ |= is_open_ && record.generation == generation_ &&
                    is_flushed_ && is_flush_given_up_;
      if (is_open_ && record.generation == generation_) {
        failed_worker_.clear();  // there is an updater again
      }
      break;
    case Kind::kGiveUp:
      is_flush_given_up_ |= is_flushed_ && record.generation == generation_;
      if (record.generation == generation_ && !record.worker.empty()) {
        failed_worker_ = record.worker;
        failed_incarnation_ = record.incarnation;
      }
      break;
    case Kind::kFlush:
      flushes_ += is_open_ && record.generation == generation_ ? 1 : 0;
      break;
    case Kind::kQuorum:
      Expect(IsPresent(record), "a quorum is of the present round");
      Expect(in_flight_ == 0 && record.count == committed_,
             "a quorum is the number of committed gradients");
      if (!record.is_flush) {
        Expect(record.count == quorum_, "a full round has its quorum");
      } else {
        flushes_ = std::max<int64_t>(flushes_ - 1, 0);
        is_flushed_ = record.count > 0;
      }
      break;
    case Kind::kStop:
      if (record.is_flush && is_open_ && record.generation == generation_) {
        flushes_ = std::max<int64_t>(flushes_ - 1, 0);
      }
      break;
    case Kind::kDrained:
      Expect(in_flight_ == 0 && committed_ < quorum_ && !IsFlushing(),
             "after a drain nothing is under way");
      break;
    case Kind::kConfigure:
      next_quorum_ = record.quorum;
      next_total_ = record.total;
      if (generation_ == 0) {
        quorum_ = next_quorum_;
        total_ = next_total_;
      }
      break;
    case Kind::kPasses:
      passes_ += record.count;
      break;
    case Kind::kClose:
      if (record.generation == generation_ || record.generation == -1) {
        is_open_ = false;
        is_ended_ = true;
      }
      break;
    case Kind::kDelete:
      is_open_ = false;
      is_ended_ = true;
      is_deleted_ = true;
      break;
  }
  seen_ = nullptr;
}

void GateChecker::CheckEffects(const SyncGateStats& stats, bool gathers) {
  if (!error_.empty()) {
    return;
  }
  live_ = stats.live;
  gathers_ = gathers;
  if (must_void_) {
    Expect(false, "an admitted contribution was given up: its round is void");
  }
  Expect(stats.round == round_, "counters: round");
  Expect(stats.generation == generation_, "counters: generation");
  Expect(stats.step == step_, "counters: step");
  Expect(stats.updates == updates_, "counters: updates");
  Expect(stats.voids == voids_, "counters: voids");
  Expect(stats.rounds == updates_ + voids_, "counters: rounds");
  Expect(stats.admitted == sum_admitted_, "counters: admitted");
  Expect(stats.committed == sum_committed_, "counters: committed");
  Expect(stats.aborted == sum_aborted_, "counters: aborted");
  Expect(stats.applied == sum_applied_, "counters: applied");
  Expect(stats.voided == sum_voided_, "counters: voided");
  Expect(stats.in_flight == in_flight_, "counters: in flight");
  Expect(stats.pending == committed_, "counters: pending");
  for (const auto& [name, worker] : workers_) {
    const bool has_failed = is_open_ && name == failed_worker_ &&
                            worker.incarnation == failed_incarnation_;
    if (worker.wait != 0 && (has_failed || !HasToWait(worker))) {
      error_ = "nobody waits without a reason, but " + name +
               " does in round " + std::to_string(round_) + ", with " +
               std::to_string(permitted_) + " permitted, " +
               std::to_string(in_flight_) + " in flight, " +
               std::to_string(committed_) + " committed of " +
               std::to_string(quorum_) + ", total " + std::to_string(total_);
      return;
    }
  }
}

bool GateChecker::WaitsForPermit(const std::string& worker) const {
  const auto found = workers_.find(worker);
  return is_open_ && found != workers_.end() && found->second.wait != 0 &&
         TermsAgree(found->second);
}

bool GateChecker::Expect(bool holds, const char* rule) {
  if (!holds && error_.empty()) {
    error_ = rule;
    if (seen_ != nullptr) {
      error_ += "\n  at: " + Text(*seen_);
    }
    error_ += "\n  in generation " + std::to_string(generation_) + ", round " +
              std::to_string(round_) + ", with " + std::to_string(permitted_) +
              " permitted, " + std::to_string(in_flight_) + " in flight, " +
              std::to_string(committed_) + " committed of " +
              std::to_string(quorum_) + ", total " + std::to_string(total_);
  }
  return holds;
}

bool GateChecker::IsPresent(const GateRecord& record) const {
  return is_open_ && record.generation == generation_ && record.round == round_;
}

GateChecker::Worker* GateChecker::Find(const GateRecord& record) {
  const auto found = workers_.find(record.worker);
  return found != workers_.end() &&
                 found->second.incarnation == record.incarnation
             ? &found->second
             : nullptr;
}

void GateChecker::Release(Worker* worker) {
  if (worker->permit != 0) {
    worker->permit = 0;
    --permitted_;
    spares_ -= worker->is_spare ? 1 : 0;
  }
  if (worker->in_flight) {
    must_void_ = true;
  }
}

void GateChecker::EndRound(int64_t next) {
  Expect(next == round_ + 1, "rounds count up one by one");
  for (auto& entry : workers_) {
    entry.second.permit = 0;
    entry.second.in_flight = false;
    entry.second.contributed = 0;
  }
  permitted_ = spares_ = in_flight_ = committed_ = flushes_ = 0;
  is_flushed_ = is_flush_given_up_ = must_void_ = false;
  round_ = next;
  quorum_ = next_quorum_;
  total_ = next_total_;
}

void GateChecker::SeeAsk(const GateRecord& record) {
  Worker& worker = workers_[record.worker];
  if (worker.dead.count(record.incarnation) > 0) {
    return;  // it is refused
  }
  Release(&worker);
  if (worker.incarnation != record.incarnation) {
    if (worker.incarnation != 0) {
      worker.dead.insert(worker.incarnation);
    }
    worker.incarnation = record.incarnation;
  }
  worker.wait = record.wait;
  worker.is_first = record.is_first;
  worker.quorum = record.quorum;
  worker.total = record.total;
}

void GateChecker::SeeGrant(const GateRecord& record) {
  Worker* worker = Find(record);
  if (!Expect(worker != nullptr && worker->wait == record.wait,
              "a permit is for somebody who waits for it")) {
    return;
  }
  worker->wait = 0;
  if (record.number <= 0) {
    passes_ -= !worker->is_first && passes_ > 0 ? 1 : 0;
    Expect(worker->is_first || is_open_, "nothing is granted after the end");
    return;
  }
  Expect(IsPresent(record),
         "a permit is for the present round of an open gate");
  Expect(record.step == step_, "a permit tells the present step");
  Expect(!IsFlushing(), "a round that is flushed permits nobody");
  Expect(NumAdmitted() < quorum_, "a round that is full permits nobody");
  Expect(permits_given_.insert(record.number).second,
         "each permit has a number of its own");
  Expect(record.is_spare ||
             permitted_ - spares_ + NumAdmitted() < std::max(total_, quorum_),
         "no more are permitted than take part, but for spares");
  if (strict_) {
    Expect(!record.is_spare, "nobody has a spare permit in strict mode");
    Expect(live_ < 1 || worker->contributed < (quorum_ - 1) / live_ + 1,
           "nobody gives more than its share");
  }
  worker->is_spare = record.is_spare;
  spares_ += record.is_spare ? 1 : 0;
  worker->permit = record.number;
  ++permitted_;
}

void GateChecker::SeeAdmit(const GateRecord& record) {
  Worker* worker = Find(record);
  if (record.verdict == Verdict::kEnded) {
    Expect(!is_open_, "an open gate does not say that training is over");
    return;
  }
  if (worker == nullptr || !IsPresent(record)) {
    Expect(record.verdict == Verdict::kStale,
           "what is of another round, or of nobody's, is stale");
    return;
  }
  if (worker->in_flight) {  // a step that was begun again
    must_void_ = true;
    Expect(record.verdict == Verdict::kStale,
           "the first run of a step may have pushed something");
    return;
  }
  const bool has_room = !IsFlushing() && NumAdmitted() < quorum_;
  Expect(worker->wait == 0 || record.verdict != Verdict::kAdmitted,
         "who waits for a permit has no step that could be admitted");
  if (record.verdict == Verdict::kAdmitted) {
    Expect(record.is_fit, "a gradient that is unfit is not admitted");
    Expect(has_room, "no more than the quorum is admitted");
    Release(worker);
    worker->in_flight = true;
    ++in_flight_;
    ++sum_admitted_;
    return;
  }
  Expect(worker->permit == 0 || !has_room || !record.is_fit,
         "who has a permit and comes in time is admitted");
  Release(worker);
}

void GateChecker::SeeCommit(const GateRecord& record) {
  Worker* worker = Find(record);
  const bool counts = worker != nullptr && worker->in_flight &&
                      record.generation == generation_ &&
                      record.round == round_;
  Expect(record.counts == counts,
         "a commit counts once, and if its contribution is in flight");
  if (counts) {
    worker->in_flight = false;
    ++worker->contributed;
    --in_flight_;
    ++committed_;
    ++sum_committed_;
  }
}

void GateChecker::SeeEndOfRound(const GateRecord& record) {
  if (record.kind == Kind::kVoid) {
    Expect(must_void_,
           "a round is void only if what was admitted was given up");
    ++voids_;
    sum_aborted_ += in_flight_;
    sum_voided_ += committed_;
    EndRound(record.round);
    return;
  }
  Expect(in_flight_ == 0, "nothing is in flight when a round ends");
  Expect(committed_ == quorum_ || is_flushed_,
         "a round advances with its quorum, or after it was flushed");
  ++updates_;
  sum_applied_ += committed_;
  step_ = record.step;
  EndRound(record.round);
}

void GateChecker::SeeOpen(const GateRecord& record) {
  Expect(!is_deleted_, "nobody opens a gate that is deleted");
  Expect(record.generation > generation_, "generations count up");
  if (NumAdmitted() > 0) {
    ++voids_;
    sum_aborted_ += in_flight_;
    sum_voided_ += committed_;
  }
  next_quorum_ = record.quorum;
  next_total_ = record.total;
  const bool goes_on = generation_ == 0 || record.round == round_;
  Expect(!goes_on || NumAdmitted() == 0,
         "what another generation left is void");
  EndRound(goes_on ? round_ + 1 : record.round);
  round_ = record.round;
  is_open_ = true;
  is_ended_ = false;
  failed_worker_.clear();
  generation_ = record.generation;
  step_ = record.step;
  opened_quorum_ = record.quorum;
  opened_total_ = record.total;
  passes_ = 0;
}

bool GateChecker::HasToWait(const Worker& worker) const {
  if (is_deleted_) {
    return false;
  }
  if (!is_open_) {  // for the first training, or the next one
    return !is_ended_ || worker.is_first;
  }
  if (!TermsAgree(worker)) {
    return worker.is_first;
  }
  if (passes_ > 0 && !worker.is_first) {
    return false;
  }
  const bool has_room = !IsFlushing() && NumAdmitted() < quorum_ &&
                        permitted_ + NumAdmitted() < std::max(total_, quorum_);
  const bool has_given_its_share =
      (strict_ || gathers_) &&
      (live_ < 1 || worker.contributed >= (quorum_ - 1) / live_ + 1);
  return !has_room || has_given_its_share;
}

bool GateChecker::TermsAgree(const Worker& worker) const {
  const auto agree = [&worker](int64_t quorum, int64_t total) {
    return (worker.quorum == 0 || worker.quorum == quorum) &&
           (worker.total == 0 || worker.total == total);
  };
  return agree(opened_quorum_, opened_total_) ||
         agree(next_quorum_, next_total_);
}

}  // namespace tf_syncrep::simulator
