// SyncGate when a training is closed or fails.

#include "tests/cc/gate/gate_fixture.h"

namespace tf_syncrep {
namespace {

using SyncGateEndsTest = GateTest;

TEST_F(SyncGateEndsTest, CloseEndsAllWaitsAsEndOfInput) {
  Start(2, 2);
  const auto of_b = Acquire(b);
  Give(a);
  const auto acquire = Acquire(a);
  Admit(b, of_b->value);
  const auto quorum = WaitQuorum();
  const auto flush = Flush();
  const auto drain = Drain();
  Close();
  EXPECT_TRUE(acquire->ended_with(GateStatus::kOutOfRange));
  EXPECT_TRUE(quorum->ended_with(GateStatus::kOutOfRange));
  EXPECT_TRUE(flush->ended_with(GateStatus::kOutOfRange));
  EXPECT_TRUE(drain->ended_with(GateStatus::kOutOfRange));
}

TEST_F(SyncGateEndsTest, AClosedGateRefusesAsEndOfInput) {
  Start(1, 1);
  const auto of_a = Acquire(a);
  Close();
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kOutOfRange));
  EXPECT_TRUE(WaitQuorum()->ended_with(GateStatus::kOutOfRange));
  Admission admission;
  EXPECT_EQ(gate->Admit(of_a->value.generation, a, of_a->value.round, true,
                        &admission)
                .code,
            GateStatus::kOutOfRange);
}

TEST_F(SyncGateEndsTest, AFirstAcquireNeverRaisesEndOfInput) {
  Start(1, 1);
  WaitQuorum();
  Acquire(a);
  const auto waiting = Acquire(b, Kind::kFirst);
  EXPECT_TRUE(waiting->waits());
  Close();
  ASSERT_TRUE(waiting->granted());
  const auto after = Acquire(b, Kind::kFirst);
  ASSERT_TRUE(after->granted());
  EXPECT_EQ(after->value.step, 0);
  EXPECT_EQ(gate->Stats().admitted, 0);
}

TEST_F(SyncGateEndsTest, AFirstAcquireOfAClosedGateIsStaleInTheNextTraining) {
  Start(1, 1);
  Acquire(a);
  Close();
  const auto of_a = Acquire(a, Kind::kFirst);
  generation = Open(0);
  EXPECT_EQ(Admit(a, of_a->value), Admission::kStale);
  Give(a);
  Update();
}

TEST_F(SyncGateEndsTest, CommitAndLeaveSucceedAfterClose) {
  Start(2, 2);
  const SyncGate::Permit of_a = BeginPush(a);
  Close();
  EXPECT_TRUE(Commit(a, of_a));
  gate->Leave(a);
  EXPECT_EQ(gate->Stats().pending, 1);
  EXPECT_FALSE(StatsOf(a).live);
}

TEST_F(SyncGateEndsTest, AnUpdateThatWasMadeCountsThoughTheGateWasClosed) {
  Start(1, 1);
  Give(a);
  const auto quorum = WaitQuorum();
  Close();
  EXPECT_TRUE(Advance(quorum->value));
  EXPECT_EQ(gate->Stats().updates, 1);
  EXPECT_TRUE(WaitQuorum()->ended_with(GateStatus::kOutOfRange));
}

TEST_F(SyncGateEndsTest, FailEndsAllWaitsWithItsError) {
  Start(2, 2);
  Give(a);
  const auto acquire = Acquire(a, Kind::kFirst);
  const auto quorum = WaitQuorum();
  Fail({GateStatus::kInvalidArgument, "The update failed."});
  EXPECT_TRUE(acquire->ended_with(GateStatus::kInvalidArgument));
  EXPECT_TRUE(quorum->ended_with(GateStatus::kInvalidArgument));
  EXPECT_EQ(quorum->status.message, "The update failed.");
  EXPECT_TRUE(Acquire(b)->ended_with(GateStatus::kInvalidArgument));
}

TEST_F(SyncGateEndsTest, TheFirstEndOfATrainingIsWhatAllHearOf) {
  Start(1, 1);
  Fail({GateStatus::kInvalidArgument, "The update failed."});
  Close();
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kInvalidArgument));
  generation = Open(0);
  Close();
  Fail({GateStatus::kInvalidArgument, "Somebody is late."});
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kOutOfRange));
}

}  // namespace
}  // namespace tf_syncrep
