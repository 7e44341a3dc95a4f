#include "tests/simulator/chief.h"

#include <algorithm>
#include <utility>

namespace tf_syncrep::simulator {

void Chief::Begin() {
  phase_ = Phase::kReset;
  must_heartbeat_ = must_flush_ = is_finishing_ = is_last_ = false;
  must_recover_ = has_finished_ = false;
  generation_ = 0;
}

bool Chief::Heartbeat() {
  if (!is_up() || phase_ != Phase::kTrace || must_heartbeat_) {
    return false;
  }
  must_heartbeat_ = true;
  return true;
}

bool Chief::Flush() {
  if (!is_up() || phase_ != Phase::kWait || must_flush_ || !pending().empty()) {
    return false;
  }
  must_flush_ = true;
  return true;
}

bool Chief::GiveUp() {
  if (!is_up() || is_finishing_) {
    return false;
  }
  if (phase_ == Phase::kFlushed) {
    phase_ = Phase::kGiveUp;
    return true;
  }
  return (phase_ == Phase::kWait || phase_ == Phase::kFlush) &&
         !pending().empty() &&
         CallBeside(NewCallBeside(CallKind::kCancelUpdater));
}

bool Chief::Finish() {
  if (!is_up() || is_over() || is_finishing_ || phase_ == Phase::kReset ||
      phase_ == Phase::kOpen) {
    return false;
  }
  is_finishing_ = true;
  is_drained_ = false;
  return CallBeside(NewCallBeside(CallKind::kDrain));
}

bool Chief::FailUpdate() {
  if (!is_up() || (phase_ != Phase::kTake && phase_ != Phase::kAdvance)) {
    return false;
  }
  Forget();
  FailSession();
  return true;
}

void Chief::BeginSession() {
  if (is_up() && !is_over()) {
    Forget();
    Rest();
    phase_ = Phase::kReset;
    is_finishing_ = is_last_ = must_recover_ = false;
  }
}

void Chief::EndSession() {
  if (HasFailed()) {
    Forget();
    phase_ = Phase::kOver;
  }
}

Call Chief::NewQueueCall(CallKind kind) const {
  return NewCall(kind, cluster().QueueTask());
}

Call Chief::NewTableCall(CallKind kind) const {
  return NewCall(kind, cluster().TableTask());
}

Call Chief::NewCallBeside(CallKind kind) const {
  Call call = NewCall(kind, kGateTask);
  call.generation = generation_;
  return call;
}

bool Chief::CallBeside(Call call) {
  if (!is_up() || is_over() || (generation_ == 0 && !IsApart(call.kind))) {
    return false;
  }
  // Nobody waits for its answer.
  cluster().send(std::move(call));
  return true;
}

Chief::Phase Chief::AfterUpdate() const {
  return is_finishing_ ? Phase::kDrain : Phase::kWait;
}

void Chief::Next() {
  const Setup& setup = cluster().setup;
  if (must_recover_ && phase_ != Phase::kReset) {
    if (cluster().setup.chief_trains && phase_ != Phase::kFail &&
        phase_ != Phase::kFailed) {
      FailSession();
    } else if (!cluster().setup.chief_trains) {
      phase_ = Phase::kReset;
      is_finishing_ = false;
    }
  }
  if (phase_ == Phase::kWait && is_finishing_) {
    phase_ = Phase::kDrain;
  }
  if (phase_ == Phase::kDrain && !is_finishing_) {
    phase_ = Phase::kWait;
  }
  if (phase_ == Phase::kDrain && is_drained_) {
    phase_ = Phase::kStop;
  }
  Call call = NewCallBeside(CallKind::kOpen);
  switch (phase_) {
    case Phase::kReset: {
      must_recover_ = false;
      const bool restores = cluster().has_lost_variables();
      for (int i = 0; i < setup.num_servers; ++i) {
        Call reset = NewCall(CallKind::kReset, {Task::Job::kServer, i});
        reset.restores = restores;
        reset.saved = cluster().saved_queue;
        reset.saved_table = cluster().saved_table;
        reset.flag = generation_ == 0;  // it has no handle of a gate yet
        Send(std::move(reset));
      }
      return;
    }
    case Phase::kOpen:
      call.step = step_;
      if (setup.terms) {
        call.quorum = setup.quorum;
        call.total = setup.total;
      }
      break;
    case Phase::kTrace:
      if (!std::exchange(must_heartbeat_, false)) {
        phase_ = AfterUpdate();  // it is ready
        Next();
        return;
      }
      call.kind = CallKind::kWaitQuorum;
      call.timeout = std::chrono::milliseconds(1);
      break;
    case Phase::kWait:
      call.kind = must_flush_ ? CallKind::kFlush : CallKind::kWaitQuorum;
      phase_ = must_flush_ ? Phase::kFlush : Phase::kWait;
      must_flush_ = false;
      call.timeout = std::chrono::milliseconds(setup.timeout);
      break;
    case Phase::kFlushed:
      phase_ = Phase::kTake;
      Next();
      return;
    case Phase::kTake:
      for (int v = 0; v < setup.num_variables; ++v) {
        Call take = NewCall(CallKind::kTake, cluster().ServerOf(v), v);
        take.generation = generation_;
        take.round = full_.round;
        take.count = full_.num_gradients;
        Send(std::move(take));
      }
      return;
    case Phase::kAdvance:
      call.kind = CallKind::kAdvance;
      call.round = full_.round;
      call.step = step_;
      break;
    case Phase::kGiveUp:
    case Phase::kStop:
      call.kind = CallKind::kCancelUpdater;
      break;
    case Phase::kDrain:
      // Goes on with updates until it hears that nothing is under way.
      call.kind = CallKind::kWaitQuorum;
      call.timeout = std::chrono::seconds(1);
      break;
    case Phase::kLastFlush:
    case Phase::kFlush:
      call.kind = CallKind::kFlush;
      break;
    case Phase::kEnd:
      call.kind = setup.terms ? CallKind::kClose : CallKind::kFail;
      break;
    case Phase::kFail: {
      // The runner has two threads, and either may come first.
      call.kind = CallKind::kCancelUpdater;
      Call of_replica = call;
      of_replica.replica_life = life();
      Send(std::move(of_replica));
      break;
    }
    case Phase::kFailed:
    case Phase::kOver:
      return;
  }
  Send(std::move(call));
}

void Chief::Take(Call* call) {
  switch (call->kind) {
    case CallKind::kReset:
      if (call->to.number == 0) {
        step_ = call->step;
      }
      break;
    case CallKind::kOpen:
      generation_ = call->generation;
      break;
    case CallKind::kWaitQuorum:
    case CallKind::kFlush:
      full_ = call->full;
      break;
    case CallKind::kTake:
      step_ = call->variable == 0 ? call->step : step_;
      break;
    case CallKind::kAdvance:
      was_advanced_ = call->flag;
      break;
    default:
      break;
  }
}

void Chief::TakeBeside(const Call& call) {
  if (call.kind == CallKind::kDrain && call.generation == generation_) {
    is_drained_ |= call.status.ok();
    is_finishing_ &= call.status.ok();  // otherwise it has to be told so again
  } else if (call.kind == CallKind::kSave && call.status.ok()) {
    cluster().saved_queue = call.saved;
  } else if (call.kind == CallKind::kSaveTable && call.status.ok()) {
    cluster().saved_table = call.saved_table;
  }
}

void Chief::GoOn() {
  if (phase_ == Phase::kFail) {  // whether or not the gate has heard it
    phase_ = cluster().replica_is_over() ? Phase::kOver : Phase::kFailed;
    return;
  }
  if (error() != nullptr) {
    FailStep();
    return;
  }
  switch (phase_) {
    case Phase::kReset:
      phase_ = Phase::kOpen;
      break;
    case Phase::kOpen:
      phase_ = cluster().setup.heartbeats ? Phase::kTrace : Phase::kWait;
      break;
    case Phase::kTrace:  // a full round: there is no need to trace
    case Phase::kWait:
    case Phase::kDrain:
      phase_ = Phase::kTake;
      break;
    case Phase::kFlush:
      phase_ = full_.num_gradients > 0 ? Phase::kFlushed : Phase::kWait;
      break;
    case Phase::kGiveUp:
      phase_ = Phase::kWait;
      break;
    case Phase::kTake:
      phase_ = Phase::kAdvance;
      break;
    case Phase::kAdvance:
      if (!was_advanced_) {
        cluster().fail("an update was made that does not count");
      }
      phase_ = is_last_ ? Phase::kEnd : AfterUpdate();
      break;
    case Phase::kStop:
      phase_ = Phase::kLastFlush;
      break;
    case Phase::kLastFlush:
      is_last_ = full_.num_gradients > 0;
      phase_ = is_last_ ? Phase::kTake : Phase::kEnd;
      break;
    case Phase::kEnd:
      has_finished_ = true;
      phase_ = Phase::kOver;
      break;
    case Phase::kFlushed:
    case Phase::kFail:
    case Phase::kFailed:
    case Phase::kOver:
      break;
  }
}

void Chief::FailStep() {
  const GateStatus& status = *error();
  const bool is_in_vain = status.code == GateStatus::kDeadlineExceeded &&
                          status.message.rfind("No full round", 0) == 0;
  if (is_in_vain) {
    // It calls anew.
  } else if (status.code == GateStatus::kCancelled) {
    phase_ = AfterUpdate();
  } else if (status.code == Call::kUnavailable ||
             status.code == GateStatus::kFailedPrecondition) {
    FailSession();
  } else {
    // The gate is closed, deleted, or another chief's.
    phase_ = Phase::kOver;
  }
}

void Chief::FailSession() {
  if (!cluster().setup.chief_trains || phase_ == Phase::kReset ||
      phase_ == Phase::kOpen) {
    // Its session begins anew, with another generation.
    BeginSession();
    return;
  }
  // The replica's step will fail, and begin it anew.
  phase_ = Phase::kFail;
  is_finishing_ = is_last_ = false;
}

}  // namespace tf_syncrep::simulator
