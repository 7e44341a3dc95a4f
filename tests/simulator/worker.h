// A worker: acquire, read, compute, admit, push, commit, and again.

#ifndef TESTS_SIMULATOR_WORKER_H_
#define TESTS_SIMULATOR_WORKER_H_

#include <cstdint>
#include <memory>

#include "tests/simulator/actor.h"

namespace tf_syncrep::simulator {

class Worker final : public Actor {
 public:
  Worker(int number, Cluster* cluster);

  bool is_over() const override { return phase_ == Phase::kGone; }

  // Each of these returns false, and has no effect, if it is not possible now.
  bool Abort();   // gives up the step, and says so
  bool Again();   // begins the step anew, whatever becomes of the old one
  bool Reject();  // its gradient is unfit
  bool Leave();

  // The acquire that it waits for, or null.
  Call* acquire() const;

 private:
  enum class Phase {
    kAcquire,
    kRead,
    kAdmit,
    kPush,
    kCommit,
    kAbort,
    kLeave,
    kGone,
  };

  void Begin() override;
  void Next() override;
  void Take(Call* call) override;
  void GoOn() override;
  void FailStep();
  void End();  // it makes no more steps
  // Begins its session anew, which is also that of a chief in its process.
  void BeginSession();
  bool is_chiefs() const { return cluster().IsChiefsReplica(task()); }
  Call ContributionCall(CallKind kind) const;

  Phase phase_ = Phase::kAcquire;
  bool is_first_ = true;  // of its session, or after a failure
  bool is_fit_ = true;
  bool is_admitted_ = false;
  SyncGate::Permit permit_;
  std::shared_ptr<Contribution> contribution_;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_WORKER_H_
