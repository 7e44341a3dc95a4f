#include "tests/simulator/worker.h"

#include <utility>

namespace tf_syncrep::simulator {
namespace {

// Gradients that are pushed for this round are dropped, as are those that were
// not admitted.
constexpr int64_t kNoRound = -1;

}  // namespace

Worker::Worker(int number, Cluster* cluster)
    : Actor({Task::Job::kWorker, number}, cluster) {
  Begin();
}

void Worker::Begin() {
  phase_ = Phase::kAcquire;
  is_first_ = cluster().setup.terms;
  is_fit_ = true;
}

bool Worker::Abort() {
  if (!is_up() || is_over() || phase_ == Phase::kAcquire ||
      phase_ == Phase::kLeave || phase_ == Phase::kAbort) {
    return false;
  }
  Forget();
  phase_ = Phase::kAbort;
  return true;
}

bool Worker::Again() {
  if (!is_up() || is_over() || phase_ == Phase::kLeave) {
    return false;
  }
  Forget();
  phase_ = Phase::kAcquire;
  return true;
}

bool Worker::Reject() {
  return is_up() && !is_over() && std::exchange(is_fit_, false);
}

bool Worker::Leave() {
  if (!is_up() || is_over() || phase_ == Phase::kLeave) {
    return false;
  }
  Forget();
  phase_ = Phase::kLeave;
  return true;
}

Call* Worker::acquire() const {
  return phase_ == Phase::kAcquire && !pending().empty() ? pending().front()
                                                         : nullptr;
}

void Worker::Next() {
  const Setup& setup = cluster().setup;
  const auto num_variables = static_cast<int>(setup.num_variables);
  switch (phase_) {
    case Phase::kAcquire: {
      if (is_chiefs() && !cluster().session_has_begun()) {
        return;
      }
      if (is_chiefs() && cluster().session_has_failed()) {
        BeginSession();
        return;
      }
      Call call = NewCall(CallKind::kAcquire, kGateTask);
      call.is_first = is_first_;
      if (setup.terms) {
        call.quorum = setup.quorum;
        call.total = setup.total;
      }
      Send(std::move(call));
      break;
    }
    case Phase::kRead:
      contribution_ = std::make_shared<Contribution>();
      contribution_->number = cluster().next_contribution();
      contribution_->read.resize(num_variables);
      for (int v = 0; v < num_variables; ++v) {
        Send(NewCall(CallKind::kRead, cluster().ServerOf(v), v));
      }
      break;
    case Phase::kAdmit: {
      Call call = ContributionCall(CallKind::kAdmit);
      call.is_fit = std::exchange(is_fit_, true);
      Send(std::move(call));
      break;
    }
    case Phase::kPush:
      for (int v = 0; v < num_variables; ++v) {
        Call call = NewCall(CallKind::kPush, cluster().ServerOf(v), v);
        call.round = is_admitted_ ? permit_.round : kNoRound;
        call.contribution = contribution_;
        Send(std::move(call));
      }
      break;
    case Phase::kCommit:
      Send(ContributionCall(CallKind::kCommit));
      break;
    case Phase::kAbort:
      Send(ContributionCall(CallKind::kAbort));
      break;
    case Phase::kLeave:
      Send(NewCall(CallKind::kLeave, kGateTask));
      break;
    case Phase::kGone:
      break;
  }
}

void Worker::Take(Call* call) {
  switch (call->kind) {
    case CallKind::kAcquire:
      permit_ = call->permit;
      break;
    case CallKind::kRead:
      contribution_->read[call->variable] = std::move(call->weights);
      break;
    case CallKind::kAdmit:
      is_admitted_ = call->status.ok() &&
                     call->admission == SyncGate::Admission::kAdmitted;
      break;
    default:
      break;
  }
}

void Worker::GoOn() {
  if (error() != nullptr) {
    FailStep();
    return;
  }
  switch (phase_) {
    case Phase::kAcquire:
      is_first_ = false;
      phase_ = Phase::kRead;
      break;
    case Phase::kRead: {
      const auto num_variables =
          static_cast<int>(cluster().setup.num_variables);
      for (int v = 0; v < num_variables; ++v) {
        const bool sparse = cluster().setup.sparse && v == num_variables - 1;
        contribution_->gradients.push_back(MakeGradient(
            contribution_->number, v, sparse, contribution_->read[v]));
      }
      phase_ = Phase::kAdmit;
      break;
    }
    case Phase::kAdmit:
      phase_ = Phase::kPush;
      break;
    case Phase::kPush:
      phase_ = is_admitted_ ? Phase::kCommit : Phase::kAcquire;
      break;
    case Phase::kCommit:
    case Phase::kAbort:
      phase_ = Phase::kAcquire;
      break;
    case Phase::kLeave:
      End();
      break;
    case Phase::kGone:
      break;
  }
}

void Worker::FailStep() {
  Rest();
  const bool goes_on = error()->code == Call::kUnavailable ||
                       (is_chiefs() && cluster().session_has_failed());
  const bool is_session = cluster().setup.terms || is_chiefs();
  if (phase_ == Phase::kLeave || (cluster().is_ending && !goes_on) ||
      (error()->code == GateStatus::kOutOfRange && is_session)) {
    End();
    return;
  }
  if (is_session) {
    BeginSession();
    return;
  }
  // A function of Keras gives back the permit that it holds.
  is_first_ = false;
  const bool holds = phase_ == Phase::kRead || phase_ == Phase::kPush ||
                     phase_ == Phase::kCommit;
  phase_ = holds ? Phase::kAbort : Phase::kAcquire;
}

void Worker::End() {
  phase_ = Phase::kGone;
  if (is_chiefs()) {
    cluster().end_session();
  }
}

void Worker::BeginSession() {
  Rest();
  is_first_ = true;
  phase_ = Phase::kAcquire;
  if (is_chiefs()) {
    cluster().begin_session();
  }
}

Call Worker::ContributionCall(CallKind kind) const {
  Call call = NewCall(kind, kGateTask);
  call.generation = permit_.generation;
  call.round = permit_.round;
  call.contribution = contribution_;
  return call;
}

}  // namespace tf_syncrep::simulator
