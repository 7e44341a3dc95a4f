// SyncGate from one training to the next: generations that cannot disturb each
// other, chiefs that change the terms, and workers that come before their
// chief.

#include "tests/cc/gate/gate_fixture.h"

namespace tf_syncrep {
namespace {

using SyncGateGenerationsTest = GateTest;

GateTerms Terms(int64_t quorum, int64_t total) {
  GateTerms terms;
  terms.quorum = quorum;
  terms.total = total;
  return terms;
}

// --- Numbers ---

TEST_F(SyncGateGenerationsTest, TheyBeginWithTheFirstAndCountUp) {
  SyncGateOptions options;
  options.first_generation = 1000;
  Make(options);
  EXPECT_EQ(gate->Stats().generation, 0);
  EXPECT_EQ(Open(0), 1000);
  EXPECT_EQ(Open(0), 1001);
}

TEST_F(SyncGateGenerationsTest, AChiefCannotCloseItsSuccessorsGate) {
  Start(1, 1);
  const int64_t old = generation;
  generation = Open(0);
  gate->Close(old);
  gate->Fail(old, {GateStatus::kInvalidArgument, "Something old."});
  Give(a);
  EXPECT_EQ(Update(), 1);
  gate->Close(generation);
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kOutOfRange));
}

TEST_F(SyncGateGenerationsTest, OneThatNeverOpenedCannotCloseIt) {
  Start(1, 1);
  gate->Close(0);
  EXPECT_TRUE(Acquire(a)->granted());
}

// --- Terms ---

TEST_F(SyncGateGenerationsTest, AChiefMayChangeQuorumAndTotalWhenItOpens) {
  Start(2, 2);
  Give(a);
  generation = Open(0, Terms(1, 3));
  EXPECT_EQ(gate->Stats().quorum, 1);
  EXPECT_EQ(gate->Stats().total, 3);
  Give(a);
  EXPECT_EQ(Update(), 1);
  generation = Open(0);  // as before
  EXPECT_EQ(gate->Stats().quorum, 1);
}

TEST_F(SyncGateGenerationsTest, ItMayDoSoWithTheFirstOpenToo) {
  Make({});
  generation = Open(0, Terms(2, 3));
  EXPECT_EQ(gate->Stats().quorum, 2);
  EXPECT_EQ(gate->Stats().total, 3);
}

TEST_F(SyncGateGenerationsTest, AChiefMayChangeTheLeasesWhenItOpens) {
  Start(1, 3);
  GateTerms terms;
  terms.lease = std::chrono::seconds(5);
  terms.start_lease = std::chrono::seconds(7);
  generation = Open(0, terms);
  Give(a);
  Update();
  Acquire(b);
  Pass(std::chrono::seconds(5));
  EXPECT_FALSE(StatsOf(a).live);
  EXPECT_TRUE(StatsOf(b).live);
  Pass(std::chrono::seconds(2));
  EXPECT_FALSE(StatsOf(b).live);
}

TEST_F(SyncGateGenerationsTest, AWorkerWithOtherTermsIsToldSo) {
  Start(2, 3);
  EXPECT_TRUE(Acquire(b, Kind::kNext, Terms(2, 3))->granted());
  const auto of_a = Acquire(a, Kind::kNext, Terms(4, 3));
  EXPECT_TRUE(of_a->ended_with(GateStatus::kInvalidArgument));
  EXPECT_EQ(of_a->status.message,
            "Worker and chief must agree: the chief opened the gate with "
            "replicas_to_aggregate=2, total_num_replicas=3. Received: "
            "replicas_to_aggregate=4, total_num_replicas=3");
  EXPECT_FALSE(StatsOf(a).live);  // nobody waits for it
}

TEST_F(SyncGateGenerationsTest,
       AtItsStartItFirstWaitsALeaseForAChiefThatAgrees) {
  Start(2, 2);
  const auto of_a = Acquire(a, Kind::kFirst, Terms(1, 1));
  const auto of_b = Acquire(b, Kind::kFirst, Terms(3, 3));
  EXPECT_EQ(gate->Poll(), now + kLease);
  Pass(kLease - kSecond);
  EXPECT_TRUE(of_a->waits());
  generation = Open(4, Terms(1, 1));
  ASSERT_TRUE(of_a->granted());
  EXPECT_TRUE(of_b->waits());
  EXPECT_TRUE(Contribute(a, of_a->value));
  EXPECT_EQ(Update(), 1);
  Pass(kSecond);
  EXPECT_TRUE(of_b->ended_with(GateStatus::kInvalidArgument));
}

TEST_F(SyncGateGenerationsTest, AWorkerThatWaitsForTheFirstOpenIsToldToo) {
  Make({});
  const auto next = Acquire(a, Kind::kNext, Terms(7, 7));
  const auto first = Acquire(b, Kind::kFirst, Terms(7, 7));
  generation = Open(0);
  EXPECT_TRUE(next->ended_with(GateStatus::kInvalidArgument));
  EXPECT_TRUE(first->waits());
  Pass(kLease);
  EXPECT_TRUE(first->ended_with(GateStatus::kInvalidArgument));
}

TEST_F(SyncGateGenerationsTest, TermsThatTheChiefConfiguredAgreeToo) {
  Start(2, 2);
  gate->Configure(1, 2);
  EXPECT_TRUE(Acquire(a, Kind::kNext, Terms(2, 2))->granted());
  EXPECT_TRUE(Acquire(b, Kind::kNext, Terms(1, 2))->granted());
  EXPECT_TRUE(Acquire(c, Kind::kNext, Terms(1, 1))
                  ->ended_with(GateStatus::kInvalidArgument));
}

// --- Before the next chief ---

TEST_F(SyncGateGenerationsTest, AStrangerToAClosedTrainingWaitsForTheNext) {
  Start(1, 1);
  Give(a);
  Update();
  Close();
  const auto stranger = Acquire(b, Kind::kFirst);
  const auto anew = Acquire(restarted, Kind::kFirst);
  Pass(kStartLease - kSecond);
  EXPECT_TRUE(stranger->waits());
  EXPECT_TRUE(anew->waits());
  generation = Open(9);
  EXPECT_EQ(gate->Stats().live, 2);
  ASSERT_TRUE(anew->granted());  // in order of device names
  EXPECT_EQ(anew->value.step, 9);
  EXPECT_EQ(anew->value.generation, generation);
}

TEST_F(SyncGateGenerationsTest, WhoHasHeardOfTheEndOrLeftWaitsForTheNextToo) {
  Start(3, 3);
  const auto of_a = Acquire(a);
  Acquire(b);
  Acquire(c);
  Close();
  Admission admission;
  EXPECT_FALSE(
      gate->Admit(generation, a, of_a->value.round, true, &admission).ok());
  EXPECT_TRUE(Acquire(b)->ended_with(GateStatus::kOutOfRange));
  gate->Leave(c);
  for (const GateWorker& worker : {a, b, c}) {
    EXPECT_TRUE(Acquire(worker, Kind::kFirst)->waits());
  }
  generation = Open(0);
  EXPECT_EQ(gate->Stats().live, 3);
}

TEST_F(SyncGateGenerationsTest, WhoHasNotHeardOfTheEndDoesNotWait) {
  // A session has recovered, and does not know that the training is over.
  Start(1, 1);
  Give(a);
  Close();
  EXPECT_TRUE(Acquire(a, Kind::kFirst)->granted());
}

TEST_F(SyncGateGenerationsTest, IfNoChiefComesItEndsAsItDoesForAll) {
  Start(1, 1);
  Close();
  const auto stranger = Acquire(a, Kind::kFirst);
  EXPECT_EQ(gate->Poll(), now + kStartLease);
  Pass(kStartLease);
  ASSERT_TRUE(stranger->granted());
  EXPECT_EQ(stranger->value.number, 0);
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kOutOfRange));
}

TEST_F(SyncGateGenerationsTest, OnlyTheStartOfASessionWaits) {
  Start(1, 1);
  Close();
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kOutOfRange));
}

TEST_F(SyncGateGenerationsTest, AStrangerToAFailedTrainingWaitsForTheNext) {
  Start(1, 1);
  Fail({GateStatus::kInvalidArgument, "The update failed."});
  const auto of_a = Acquire(a, Kind::kFirst);
  const auto of_b = Acquire(b, Kind::kFirst);
  EXPECT_TRUE(of_b->waits());
  EXPECT_TRUE(gate->Cancel(of_b->id));
  Pass(kStartLease);
  EXPECT_TRUE(of_a->ended_with(GateStatus::kInvalidArgument));
}

TEST_F(SyncGateGenerationsTest, WorkersThatCameEarlyAreNotExpiredByWaiting) {
  Start(2, 2);
  Close();
  const auto of_a = Acquire(a, Kind::kFirst);
  Pass(kStartLease - kSecond);
  generation = Open(0);
  ASSERT_TRUE(of_a->granted());
  ExpectToExpireAfter(kStartLease, a);
}

TEST_F(SyncGateGenerationsTest, ShutdownEndsTheirWaitsToo) {
  Start(1, 1);
  Close();
  const auto early = Acquire(a, Kind::kFirst);
  gate->Shutdown();
  EXPECT_TRUE(early->granted());  // the gate stays closed
  EXPECT_TRUE(Acquire(b, Kind::kFirst)->granted());
  EXPECT_TRUE(Acquire(b)->ended_with(GateStatus::kOutOfRange));
}

TEST_F(SyncGateGenerationsTest, NobodyOpensADeletedGate) {
  Start(1, 1);
  gate->Shutdown();
  EXPECT_EQ(Open(7), generation);
  EXPECT_TRUE(Acquire(a, Kind::kFirst)->ended_with(GateStatus::kAborted));
  EXPECT_TRUE(WaitQuorum()->ended_with(GateStatus::kAborted));
}

TEST_F(SyncGateGenerationsTest, ShutdownEndsAWaitForAChiefThatAgrees) {
  Start(1, 1);
  const auto early = Acquire(a, Kind::kFirst, Terms(2, 2));
  EXPECT_TRUE(early->waits());
  gate->Shutdown();
  EXPECT_TRUE(early->ended_with(GateStatus::kAborted));
}

}  // namespace
}  // namespace tf_syncrep
