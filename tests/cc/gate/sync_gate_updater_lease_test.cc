// SyncGate when its updater is silent.

#include "tests/cc/gate/gate_fixture.h"

namespace tf_syncrep {
namespace {

class SyncGateUpdaterLeaseTest : public GateTest {
 protected:
  static constexpr auto kUpdaterLease = std::chrono::seconds(20);

  void SetUp() override {
    SyncGateOptions options;
    options.strict = false;
    options.updater_lease = kUpdaterLease;
    options.start_lease = std::chrono::seconds(100);
    Make(options);
    generation = Open(0);
  }

  // Does what an updater does at first.
  void Hello() { gate->Cancel(WaitQuorum()->id); }
};

TEST_F(SyncGateUpdaterLeaseTest, ASilentUpdaterFailsAllWaits) {
  Hello();
  Acquire(a);
  const auto waiting = Acquire(b);
  EXPECT_EQ(gate->Poll(), now + kUpdaterLease);
  PassUntilEnd(kUpdaterLease, *waiting);
  EXPECT_TRUE(waiting->ended_with(GateStatus::kDeadlineExceeded));
  EXPECT_EQ(waiting->status.message,
            "The updater has not called for its lease of 20000 ms: the "
            "coordinator is gone or stuck.");
  EXPECT_TRUE(Acquire(c)->ended_with(GateStatus::kDeadlineExceeded));
}

TEST_F(SyncGateUpdaterLeaseTest, BeforeItsFirstCallTheStartLeaseHolds) {
  Acquire(a);
  const auto waiting = Acquire(b);
  Pass(std::chrono::seconds(99));
  EXPECT_TRUE(waiting->waits());
  Pass(kSecond);
  EXPECT_TRUE(waiting->ended_with(GateStatus::kDeadlineExceeded));
}

TEST_F(SyncGateUpdaterLeaseTest, AfterSignsOfLifeTheStartLeaseStillHolds) {
  for (int sign = 0; sign < 3; ++sign) {
    WaitQuorum(SyncGate::kSignOfLife);
    Pass(std::chrono::seconds(99));
    EXPECT_TRUE(Acquire(a)->granted());
  }
  WaitQuorum(std::chrono::seconds(15));
  Pass(std::chrono::seconds(34));
  EXPECT_TRUE(Acquire(a)->granted());
  Pass(kSecond);
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kDeadlineExceeded));
}

TEST_F(SyncGateUpdaterLeaseTest, BoundedWaitsOneAfterTheOtherKeepItAlive) {
  for (int i = 0; i < 10; ++i) {
    const auto quorum = WaitQuorum(std::chrono::seconds(15));
    Pass(std::chrono::seconds(15));
    EXPECT_TRUE(quorum->ended_with(GateStatus::kDeadlineExceeded));
  }
  EXPECT_TRUE(Acquire(a)->granted());
}

TEST_F(SyncGateUpdaterLeaseTest, ItsLeaseBeginsWhereItsLastWaitEnds) {
  WaitQuorum(std::chrono::seconds(15));
  now += std::chrono::seconds(34);  // and nobody polls meanwhile
  gate->Poll();
  EXPECT_TRUE(Acquire(a)->granted());
  Pass(kSecond);
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kDeadlineExceeded));
}

TEST_F(SyncGateUpdaterLeaseTest, AnAdvanceRenewsIt) {
  const auto quorum = WaitQuorum();
  Give(a);
  Pass(std::chrono::seconds(19));
  EXPECT_TRUE(Advance(quorum->value));
  Pass(std::chrono::seconds(19));
  EXPECT_TRUE(Acquire(a)->granted());
}

TEST_F(SyncGateUpdaterLeaseTest, AChiefThatDrainsDoesNotStandInForIt) {
  Hello();
  BeginPush(a);
  const auto drain = Drain();
  Pass(kUpdaterLease);
  EXPECT_TRUE(drain->ended_with(GateStatus::kDeadlineExceeded));
}

TEST_F(SyncGateUpdaterLeaseTest, AnUpdateThatTookTooLongCountsAllTheSame) {
  const auto quorum = WaitQuorum();
  Give(a);
  Pass(kUpdaterLease);
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kDeadlineExceeded));
  EXPECT_TRUE(Advance(quorum->value));
}

TEST_F(SyncGateUpdaterLeaseTest, ANewGenerationHasALeaseOfItsOwn) {
  Hello();
  Pass(kUpdaterLease);
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kDeadlineExceeded));
  generation = Open(0);
  EXPECT_TRUE(Acquire(a)->granted());
}

}  // namespace
}  // namespace tf_syncrep
