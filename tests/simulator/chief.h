// The chief: it opens the gate, applies full rounds, and ends training.

#ifndef TESTS_SIMULATOR_CHIEF_H_
#define TESTS_SIMULATOR_CHIEF_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulator/actor.h"

namespace tf_syncrep::simulator {

class Chief final : public Actor {
 public:
  explicit Chief(Cluster* cluster) : Actor({}, cluster) { Begin(); }

  bool is_over() const override { return phase_ == Phase::kOver; }
  // Whether its training ended as it wanted.
  bool has_finished() const { return has_finished_; }
  bool is_tracing() const { return is_up() && phase_ == Phase::kTrace; }

  // Each is of no effect, and false, where there is nothing to do it to.
  bool Heartbeat();
  bool Flush();
  bool GiveUp();
  bool Finish();
  bool FailUpdate();
  // Of kClose, kFail, kConfigure and kAddPasses, and of those to the work
  // queue: a call beside what it does.
  bool CallBeside(Call call);
  // A server that it has to do with has lost its variables.
  void HearOfLoss() { must_recover_ = true; }
  // It has opened the gate, before which no replica in its process steps.
  bool HasBegun() const {
    return phase_ != Phase::kReset && phase_ != Phase::kOpen;
  }
  // The session of its process, in which there is a replica, too, has failed,
  // and waits for the replica to begin another one.
  bool HasFailed() const {
    return cluster().setup.chief_trains && is_up() &&
           (must_recover_ || phase_ == Phase::kFail ||
            phase_ == Phase::kFailed);
  }
  void BeginSession();
  void EndSession();
  // Where its training went wrong, it begins another one, as another process.
  bool MayRestart() const { return !is_up() || (is_over() && !has_finished_); }

  Call NewCallBeside(CallKind kind) const;
  Call NewQueueCall(CallKind kind) const;

 private:
  enum class Phase {
    kReset,
    kOpen,
    kTrace,  // it is not ready to update, and says that it lives
    kWait,
    kFlush,
    kFlushed,
    kGiveUp,
    kTake,
    kAdvance,
    kDrain,
    kStop,
    kLastFlush,
    kEnd,
    kFail,    // it tells the gate that it has failed
    kFailed,  // and does no more
    kOver,
  };

  void Begin() override;
  void Next() override;
  void Take(Call* call) override;
  void GoOn() override;
  void TakeBeside(const Call& call) override;
  void FailStep();
  void FailSession();
  bool IsQueueCall(CallKind kind) const {
    return kind == CallKind::kSave || kind == CallKind::kRestore ||
           kind == CallKind::kLimit;
  }
  // Whether the updater goes from here to the end that was asked for.
  Phase AfterUpdate() const;

  Phase phase_ = Phase::kReset;
  bool must_heartbeat_ = false;
  bool must_flush_ = false;
  bool is_finishing_ = false;
  bool is_drained_ = false;
  bool is_last_ = false;  // the update of the last round
  bool must_recover_ = false;
  bool has_finished_ = false;
  int64_t generation_ = 0;
  int64_t step_ = 0;
  SyncGate::Quorum full_;
  bool was_advanced_ = false;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_CHIEF_H_
