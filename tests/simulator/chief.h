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
  // Of kClose, kFail, kConfigure and kAddPasses: a call beside what it does.
  bool CallBeside(Call call);
  // A server that it has to do with has lost its variables.
  void HearOfLoss() { must_recover_ = true; }
  // Where its training went wrong, it begins another one, as another process.
  bool MayRestart() const { return !is_up() || (is_over() && !has_finished_); }

  Call NewCallBeside(CallKind kind) const;

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
    kOver,
  };

  void Begin() override;
  void Next() override;
  void Take(Call* call) override;
  void GoOn() override;
  void TakeBeside(const Call& call) override;
  void FailStep();
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
