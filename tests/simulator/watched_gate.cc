#include "tests/simulator/watched_gate.h"

#include <algorithm>
#include <utility>

#include "tests/cc/gate/gate_accounting.h"

namespace tf_syncrep::simulator {
namespace {

using Kind = GateRecord::Kind;
using Verdict = GateRecord::Verdict;

Verdict VerdictOf(SyncGate::Admission admission) {
  switch (admission) {
    case SyncGate::Admission::kAdmitted:
      return Verdict::kAdmitted;
    case SyncGate::Admission::kLate:
      return Verdict::kLate;
    case SyncGate::Admission::kStale:
      return Verdict::kStale;
    case SyncGate::Admission::kRejected:
      return Verdict::kRejected;
  }
  return Verdict::kEnded;
}

GateWorker WorkerOf(const Call& call) {
  return {Text(call.from), static_cast<uint64_t>(call.from_life)};
}

}  // namespace

WatchedGate::WatchedGate(const SyncGateOptions& options, SyncGate::Clock clock,
                         Twin* twin, Log log)
    : options_(options),
      clock_(std::move(clock)),
      twin_(twin),
      log_(std::move(log)),
      gate_(WithObserver(options), clock_) {
  GateRecord record;
  record.kind = Kind::kMake;
  record.round = options.first_round;
  record.quorum = options.quorum;
  record.total = options.total;
  record.strict = options.strict;
  See(std::move(record));
  last_ = gate_.Stats();
}

SyncGateOptions WatchedGate::WithObserver(SyncGateOptions options) {
  options.observer = [this](const GateEvent& event) {
    event_checker_.See(event);
    Expect(event_checker_.error().empty(), event_checker_.error());
    if (event.kind == GateEvent::Kind::kSpare) {
      spares_.insert(event.value);
    } else if (event.kind == GateEvent::Kind::kExpired ||
               event.kind == GateEvent::Kind::kVoid) {
      events_.push_back(event);
    }
  };
  return options;
}

void WatchedGate::Handle(Call* call) {
  const GateWorker worker = WorkerOf(*call);
  call->state = Call::State::kComesBack;
  if (is_deleted_ && call->number > last_call_) {
    call->status = {Call::kNotFound, "There is no such gate."};
    return;
  }
  LookForLostUpdater();
  switch (call->kind) {
    case CallKind::kAcquire: {
      SilenceOf(*call).Ask(worker.incarnation, call->is_first, clock_());
      have_asked_.emplace(worker.device, worker.incarnation);
      GateRecord ask = RecordOf(Kind::kAsk, *call);
      ask.wait = call->number;
      ask.is_first = call->is_first;
      ask.quorum = call->quorum;
      ask.total = call->total;
      See(std::move(ask));
      GateTerms terms;
      terms.quorum = call->quorum;
      terms.total = call->total;
      call->state = Call::State::kWaits;
      call->wait = gate_.Acquire(
          worker,
          call->is_first ? SyncGate::AcquireKind::kFirst
                         : SyncGate::AcquireKind::kNext,
          terms,
          [this, call](const GateStatus& status,
                       const SyncGate::Permit& permit) {
            Look();
            if (status.ok()) {
              SilenceOf(*call).Grant(call->from_life, permit, clock_());
            } else {
              SilenceOf(*call).Stop(call->from_life, clock_());
            }
            CheckStatus(status);
            GateRecord end =
                RecordOf(status.ok() ? Kind::kGrant : Kind::kRefuse, *call);
            end.wait = call->number;
            end.generation = permit.generation;
            end.round = permit.round;
            end.step = permit.step;
            end.number = permit.number;
            end.is_spare = spares_.count(permit.number) > 0;
            end.code = status.code;
            end.live = last_.live;
            See(std::move(end));
            call->state = Call::State::kComesBack;
            call->status = status;
            call->permit = permit;
          });
      break;
    }
    case CallKind::kAdmit: {
      tell_ = [this, call](const SyncGateStats&) {
        CheckStatus(call->status);
        GateRecord admit = RecordOf(Kind::kAdmit, *call);
        admit.is_fit = call->is_fit;
        admit.verdict =
            call->status.ok() ? VerdictOf(call->admission) : Verdict::kEnded;
        See(std::move(admit));
        SilenceOf(*call).Admit(
            call->from_life, call->generation, call->round,
            call->status.ok() &&
                call->admission == SyncGate::Admission::kAdmitted,
            clock_());
      };
      call->status = gate_.Admit(call->generation, worker, call->round,
                                 call->is_fit, &call->admission);
      break;
    }
    case CallKind::kCommit: {
      SilenceOf(*call).Commit(worker.incarnation, call->generation, call->round,
                              clock_());
      tell_ = [this, call](const SyncGateStats& stats) {
        GateRecord commit = RecordOf(Kind::kCommit, *call);
        commit.counts = stats.committed > last_.committed;
        call->flag = commit.counts;
        if (commit.counts) {
          twin_->Commit(call->round, call->contribution);
        }
        See(std::move(commit));
      };
      const bool counts = gate_.Commit(call->generation, worker, call->round);
      Look();
      Expect(counts == call->flag, "a commit is told whether it counts");
      break;
    }
    case CallKind::kAbort:
      SilenceOf(*call).Stop(worker.incarnation, clock_());
      See(RecordOf(Kind::kAbort, *call));
      gate_.Abort(call->generation, worker, call->round);
      break;
    case CallKind::kLeave:
      See(RecordOf(Kind::kLeave, *call));
      gate_.Leave(worker);
      break;
    default:
      HandleUpdaters(call);
      break;
  }
  After();
}

void WatchedGate::HandleUpdaters(Call* call) {
  switch (call->kind) {
    case CallKind::kOpen: {
      GateTerms terms;
      terms.quorum = call->quorum;
      terms.total = call->total;
      const int64_t before = last_.generation;
      call->generation = gate_.Open(call->step, terms);
      Look();
      if (last_.generation == before) {
        break;  // it is deleted
      }
      updater_is_ready_ = updater_is_lost_ = false;
      HearOfUpdater(false);
      break;
    }
    case CallKind::kWaitQuorum:
    case CallKind::kFlush: {
      const bool is_flush = call->kind == CallKind::kFlush;
      See(RecordOf(is_flush ? Kind::kFlush : Kind::kWait, *call));
      if (call->generation == last_.generation) {
        const bool is_sign_of_life =
            !is_flush && call->timeout.count() > 0 &&
            call->timeout <= std::chrono::milliseconds(1);
        HearOfUpdater(!is_sign_of_life);
      }
      call->state = Call::State::kWaits;
      ++num_updater_waits_;
      call->wait = is_flush ? gate_.Flush(call->generation, EndQuorum(call))
                            : gate_.WaitQuorum(call->generation, call->timeout,
                                               EndQuorum(call));
      break;
    }
    case CallKind::kDrain:
      call->state = Call::State::kWaits;
      call->wait =
          gate_.Drain(call->generation, [this, call](const GateStatus& status) {
            Look();
            if (status.ok()) {
              See(RecordOf(Kind::kDrained, *call));
            }
            call->state = Call::State::kComesBack;
            call->status = status;
          });
      break;
    case CallKind::kAdvance: {
      if (call->generation == last_.generation) {
        HearOfUpdater(true);
      }
      const int64_t before = last_.updates;
      call->status =
          gate_.Advance(call->generation, call->round, call->step, &call->flag);
      Look();
      Expect((last_.updates == before + 1) == call->flag,
             "an advance is told whether it ended a round");
      break;
    }
    case CallKind::kCancelUpdater: {
      GateRecord record = RecordOf(Kind::kGiveUp, *call);
      if (call->replica_life == 0) {
        See(std::move(record));
        gate_.CancelUpdater(call->generation);
      } else {
        record.worker = Text(kChiefsReplica);
        record.incarnation = call->replica_life;
        See(record);
        gate_.CancelUpdater(call->generation,
                            {record.worker, record.incarnation});
      }
      break;
    }
    case CallKind::kConfigure: {
      GateRecord record = RecordOf(Kind::kConfigure, *call);
      record.quorum = call->quorum;
      record.total = call->total;
      See(std::move(record));
      call->status = gate_.Configure(call->quorum, call->total);
      break;
    }
    case CallKind::kAddPasses: {
      GateRecord record = RecordOf(Kind::kPasses, *call);
      record.count = call->count;
      See(std::move(record));
      gate_.AddPasses(call->count);
      break;
    }
    case CallKind::kClose:
      See(RecordOf(Kind::kClose, *call));
      gate_.Close(call->generation);
      break;
    case CallKind::kFail:
      See(RecordOf(Kind::kClose, *call));
      gate_.Fail(call->generation, {GateStatus::kFailedPrecondition,
                                    "The chief has given the training up."});
      break;
    default:
      break;
  }
}

SyncGate::QuorumCallback WatchedGate::EndQuorum(Call* call) {
  return [this, call](const GateStatus& status, const SyncGate::Quorum& full) {
    Look();
    CheckStatus(status);
    GateRecord record =
        RecordOf(status.ok() ? Kind::kQuorum : Kind::kStop, *call);
    record.is_flush = call->kind == CallKind::kFlush;
    record.round = full.round;
    record.count = full.num_gradients;
    record.code = status.code;
    See(std::move(record));
    --num_updater_waits_;
    if (call->generation == last_.generation) {
      updater_heard_ = std::max(updater_heard_, clock_());
    }
    call->state = Call::State::kComesBack;
    call->status = status;
    call->full = full;
  };
}

bool WatchedGate::HasHeardOf(const Call& call) const {
  const GateWorker worker = WorkerOf(call);
  return have_asked_.count({worker.device, worker.incarnation}) > 0;
}

void WatchedGate::Cancel(Call* call) {
  if (call->state == Call::State::kWaits) {
    gate_.Cancel(call->wait);
    Expect(call->state == Call::State::kComesBack,
           "a wait that is cancelled ends");
  } else if (call->state == Call::State::kComesBack &&
             call->kind == CallKind::kAcquire && call->status.ok()) {
    GateRecord record = RecordOf(Kind::kReturn, *call);
    record.generation = call->permit.generation;
    record.number = call->permit.number;
    See(std::move(record));
    gate_.ReturnPermit(WorkerOf(*call), call->permit);
    call->status = {GateStatus::kCancelled, "The step was cancelled."};
  }
  After();
}

WatchedGate::Time WatchedGate::Poll() {
  LookForLostUpdater();
  is_polling_ = true;
  const Time next = gate_.Poll();
  Look();
  is_polling_ = false;
  After();
  return next;
}

void WatchedGate::Delete(int64_t last_call) {
  GateRecord record;
  record.kind = Kind::kDelete;
  See(std::move(record));
  is_deleted_ = true;
  last_call_ = last_call;
  gate_.Shutdown();
  After();
}

void WatchedGate::Look() {
  const SyncGateStats stats = gate_.Stats();
  if (tell_) {
    // It must not be called again by its own effects.
    const auto tell = std::exchange(tell_, nullptr);
    tell(stats);
  }
  LookForExpired();
  GateRecord record;
  record.generation = stats.generation;
  record.round = stats.round;
  record.step = stats.step;
  record.live = stats.live;
  if (stats.generation != last_.generation) {
    opened_at_ = clock_();
    record.kind = Kind::kOpen;
    record.quorum = stats.quorum;
    record.total = stats.total;
    See(record);
    twin_->Open();
    for (auto& [worker, silence] : silences_) {
      silence.Open();
    }
  } else if (stats.updates != last_.updates) {
    record.kind = Kind::kAdvance;
    See(record);
    twin_->Advance(last_.round);
  } else if (stats.round != last_.round) {
    record.kind = Kind::kVoid;
    See(record);
  }
  last_ = stats;
}

void WatchedGate::After() {
  Look();
  checker_.CheckEffects(
      last_, options_.gathers && clock_() < opened_at_ + options_.lease);
  Expect(checker_.error().empty(), checker_.error());
  for (const GateWorkerStats& worker : last_.workers) {
    Expect(worker.live || !checker_.WaitsForPermit(worker.device),
           "who waits is not silent: " + worker.device);
  }
  const std::string broken =
      BrokenIdentities(last_, checker_.updates(), checker_.applied());
  Expect(broken.empty(), "identities that do not hold: " + broken);
}

void WatchedGate::LookForExpired() {
  const std::vector<GateEvent> events = std::exchange(events_, {});
  if (!is_polling_) {
    return;  // its caller has given something up, which was told already
  }
  for (const GateEvent& event : events) {
    if (event.device.empty()) {
      continue;
    }
    GateRecord record;
    record.kind = Kind::kExpire;
    record.worker = event.device;
    record.incarnation = event.incarnation;
    See(std::move(record));
    // A push may be given up earlier if others wait for it.
    if (event.kind == GateEvent::Kind::kExpired) {
      Expect(
          silences_[event.device].MayBeDead(options_.lease,
                                            options_.start_lease, clock_()),
          "a worker is not taken for dead within its lease: " + event.device);
    }
  }
}

void WatchedGate::See(GateRecord record) {
  record.time = clock_().count();
  checker_.See(record);
  if (log_) {
    log_(record);
  }
}

GateRecord WatchedGate::RecordOf(GateRecord::Kind kind,
                                 const Call& call) const {
  GateRecord record;
  record.kind = kind;
  record.generation = call.generation;
  record.round = call.round;
  if (call.from.job == Task::Job::kWorker) {
    record.worker = Text(call.from);
    record.incarnation = call.from_life;
  }
  return record;
}

Silence& WatchedGate::SilenceOf(const Call& call) {
  return silences_[Text(call.from)];
}

void WatchedGate::HearOfUpdater(bool is_ready) {
  updater_heard_ = clock_();
  updater_is_ready_ |= is_ready;
}

void WatchedGate::LookForLostUpdater() {
  if (options_.updater_lease.count() == 0 || last_.generation == 0 ||
      num_updater_waits_ > 0) {
    return;
  }
  const Time silence = clock_() - updater_heard_;
  const Time lease = updater_is_ready_ ? options_.updater_lease
                                       : std::max(options_.updater_lease,
                                                  options_.start_lease);
  if (silence >= lease) {
    LoseUpdater();
  }
}

void WatchedGate::LoseUpdater() {
  if (std::exchange(updater_is_lost_, true)) {
    return;
  }
  GateRecord end;
  end.kind = Kind::kClose;
  end.generation = last_.generation;
  See(std::move(end));
}

void WatchedGate::CheckStatus(const GateStatus& status) {
  if (status.code == GateStatus::kDeadlineExceeded &&
      status.message.rfind("No full round", 0) != 0) {
    Expect(updater_is_lost_,
           "an updater is not taken for dead within its lease");
  }
}

void WatchedGate::Expect(bool holds, const std::string& rule) {
  if (!holds && error_.empty()) {
    error_ = rule;
  }
}

}  // namespace tf_syncrep::simulator
