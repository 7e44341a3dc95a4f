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

  // Each of these returns false, and has no effect, if it is not possible now.
  bool Heartbeat();
  bool Flush();
  bool GiveUp();
  bool Finish();
  bool FailUpdate();
  // Makes a call beside its other work: kClose, kFail, kConfigure, kAddPasses,
  // or a call to the work queue or about the table that grows.
  bool CallBeside(Call call);
  // A server that the chief uses has lost its variables.
  void HearOfLoss() { must_recover_ = true; }
  // Whether it has opened the gate; before that no replica in its process
  // steps.
  bool HasBegun() const {
    return phase_ != Phase::kReset && phase_ != Phase::kOpen;
  }
  // Whether the session of its process, which it shares with a replica, has
  // failed, and waits for the replica to begin another one.
  bool HasFailed() const {
    return cluster().setup.chief_trains && is_up() &&
           (must_recover_ || phase_ == Phase::kFail ||
            phase_ == Phase::kFailed);
  }
  void BeginSession();
  void EndSession();
  // If its training went wrong, another process begins another one.
  bool MayRestart() const { return !is_up() || (is_over() && !has_finished_); }

  Call NewCallBeside(CallKind kind) const;
  Call NewQueueCall(CallKind kind) const;
  Call NewTableCall(CallKind kind) const;

 private:
  enum class Phase {
    kReset,
    kOpen,
    kTrace,  // it is not ready to update, and only gives signs of life
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
    kFailed,  // it has told the gate, and does no more
    kOver,
  };

  void Begin() override;
  void Next() override;
  void Take(Call* call) override;
  void GoOn() override;
  void TakeBeside(const Call& call) override;
  void FailStep();
  void FailSession();
  // Whether the gate has no part in it.
  bool IsApart(CallKind kind) const {
    return kind == CallKind::kSave || kind == CallKind::kRestore ||
           kind == CallKind::kLimit || kind == CallKind::kMaintain ||
           kind == CallKind::kSaveTable || kind == CallKind::kLoadTable;
  }
  // The phase that follows an update, if an end was asked for.
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
