// SyncGate and first steps, in which functions are compiled: it learns from
// other workers how long one may take.

#include "tests/cc/gate/gate_fixture.h"

namespace tf_syncrep {
namespace {

class SyncGateFirstStepTest : public GateTest {
 protected:
  // The worker's first step takes this long, and its gradient counts.
  void GiveAfter(SyncGate::Time time, const GateWorker& worker) {
    const auto call = Acquire(worker);
    Pass(time);
    EXPECT_TRUE(Contribute(worker, call->value));
  }
};

TEST_F(SyncGateFirstStepTest, IsWaitedForFourTimesAsLongAsTheOthersNeeded) {
  Start(2, 2);
  Acquire(b);
  GiveAfter(30 * kSecond, a);
  const auto again = Acquire(a);
  Pass(89 * kSecond);
  EXPECT_TRUE(again->waits());
  Pass(kSecond);
  EXPECT_TRUE(again->granted());
  EXPECT_EQ(gate->Stats().voids, 0);
  EXPECT_EQ(StatsOf(b).expired, 1);
}

TEST_F(SyncGateFirstStepTest, TheLongestOfTheOthersCounts) {
  Start(3, 3);
  Acquire(c);
  const auto of_b = Acquire(b);
  GiveAfter(20 * kSecond, a);
  Pass(30 * kSecond);
  EXPECT_TRUE(Contribute(b, of_b->value));
  ExpectToExpireAfter((4 * 50 - 50) * kSecond, c);
}

TEST_F(SyncGateFirstStepTest, TheLaterStepsOfTheOthersDoNotCount) {
  Start(1, 2);
  Acquire(b);
  Give(a);
  Update();
  GiveAfter(50 * kSecond, a);
  ExpectToExpireAfter(10 * kSecond, b);
}

TEST_F(SyncGateFirstStepTest, IsWaitedForNoShorterThanTheLease) {
  Start(2, 2);
  GiveAfter(kSecond, a);
  Acquire(b);
  ExpectToExpireAfter(kLease, b);
}

TEST_F(SyncGateFirstStepTest, IsWaitedForNoLongerThanTheStartLease) {
  Start(2, 2);
  GiveAfter(kStartLease / 2, a);
  Acquire(b);
  ExpectToExpireAfter(kStartLease, b);
}

TEST_F(SyncGateFirstStepTest, AStartLeaseBelowTheLeaseStays) {
  SyncGateOptions options = Options(2, 2);
  options.start_lease = kLease / 2;
  Make(options);
  generation = Open(0);
  GiveAfter(kSecond, a);
  Acquire(b);
  ExpectToExpireAfter(kLease / 2, b);
}

TEST_F(SyncGateFirstStepTest, FewerThanAreInItTellNothing) {
  Start(4, 4, /*strict=*/false);
  Give(a);
  Give(restarted);  // the same worker, though it starts twice
  Acquire(b);
  Acquire(c);
  ExpectToExpireAfter(kStartLease, c);
}

TEST_F(SyncGateFirstStepTest, AsManyAsAreInItTell) {
  Start(4, 4, /*strict=*/false);
  Acquire(c);
  const auto of_b = Acquire(b);
  GiveAfter(kSecond, a);
  Pass(2 * kLease);
  EXPECT_TRUE(StatsOf(c).live);
  EXPECT_TRUE(Contribute(b, of_b->value));
  ExpectToExpireAfter((4 * 121 - 121) * kSecond, c);
}

TEST_F(SyncGateFirstStepTest, WhoWaitsIsNotInIt) {
  Start(3, 3, /*strict=*/false);
  Acquire(b);
  Give(a);
  Give(a);
  const auto of_c = Acquire(c);
  PassUntilEnd(kLease, *of_c);
  EXPECT_TRUE(of_c->granted());
}

TEST_F(SyncGateFirstStepTest, WhoWasNeverHeardOfIsInItWhereRoundsWaitForAll) {
  for (const bool strict : {false, true}) {
    Start(3, 3, strict);
    Give(a);
    Acquire(b);
    ExpectToExpireAfter(strict ? kStartLease : kLease, b);
  }
}

TEST_F(SyncGateFirstStepTest, ASlowOneThatWasTakenForDeadIsLateAndNothingElse) {
  Start(2, 2);
  const auto of_b = Acquire(b);
  GiveAfter(kSecond, a);
  const auto again = Acquire(a);
  Pass(kLease);
  EXPECT_TRUE(Contribute(a, again->value));
  EXPECT_EQ(Admit(b, of_b->value), Admission::kLate);
  EXPECT_FALSE(Commit(b, of_b->value));
  EXPECT_TRUE(StatsOf(b).live);
  EXPECT_EQ(Update(), 2);
  // From now on both give one gradient of two again.
  Give(a);
  EXPECT_TRUE(Acquire(a)->waits());
  Give(b);
  EXPECT_EQ(Update(), 2);
  EXPECT_EQ(StatsOf(b).contributed, 1);
  EXPECT_EQ(StatsOf(b).late, 1);
  EXPECT_EQ(gate->Stats().voids, 0);
}

TEST_F(SyncGateFirstStepTest, ASlowOneThatWasTakenForDeadCountsOnceInItsRound) {
  Start(2, 2);
  const auto of_b = Acquire(b);
  GiveAfter(kSecond, a);
  Pass(kLease);
  EXPECT_FALSE(StatsOf(b).live);
  EXPECT_TRUE(Contribute(b, of_b->value));
  EXPECT_FALSE(Contribute(b, of_b->value));
  EXPECT_EQ(Update(), 2);
  EXPECT_EQ(StatsOf(b).contributed, 1);
}

TEST_F(SyncGateFirstStepTest, ASlowOneThatWasTakenForDeadGivesTheNextMoreTime) {
  Start(3, 3);
  const auto of_b = Acquire(b);
  GiveAfter(kSecond, a);
  Give(c);
  Pass(100 * kSecond);
  EXPECT_FALSE(StatsOf(b).live);
  EXPECT_TRUE(Contribute(b, of_b->value));
  Update();
  Acquire(Worker(2, /*incarnation=*/2));
  ExpectToExpireAfter(4 * 101 * kSecond, c);
}

TEST_F(SyncGateFirstStepTest, AnotherGenerationLearnsAnew) {
  Start(2, 2);
  GiveAfter(kSecond, a);
  generation = Open(0);
  Acquire(b);
  ExpectToExpireAfter(kStartLease, b);
}

TEST_F(SyncGateFirstStepTest, AStepOfAnotherGenerationTellsNothing) {
  Start(2, 2);
  const auto of_a = Acquire(a);
  generation = Open(0);
  EXPECT_EQ(Admit(a, of_a->value), Admission::kStale);
  Acquire(b);
  ExpectToExpireAfter(kStartLease, b);
}

TEST_F(SyncGateFirstStepTest, WorkersNeverSeenAreExpectedForTheStartLease) {
  Start(2, 2);
  GiveAfter(kSecond, a);
  const auto again = Acquire(a);
  Pass(kStartLease - 2 * kSecond);
  EXPECT_TRUE(again->waits());
  Pass(kSecond);
  EXPECT_TRUE(again->granted());
}

}  // namespace
}  // namespace tf_syncrep
