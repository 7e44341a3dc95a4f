// SyncGate when workers and updaters die, stop, come back and start again.

#include "tests/cc/gate/gate_fixture.h"

namespace tf_syncrep {
namespace {

using SyncGateFaultsTest = GateTest;

// --- Lost with a permit ---

TEST_F(SyncGateFaultsTest, APermitThatExpiresFreesItsPlaceAndVoidsNothing) {
  Start(1, 1);
  Acquire(a);
  const auto of_b = Acquire(b);
  EXPECT_TRUE(of_b->waits());
  Pass(kStartLease);
  EXPECT_TRUE(of_b->granted());
  EXPECT_EQ(gate->Stats().voids, 0);
  EXPECT_EQ(StatsOf(a).expired, 1);
}

TEST_F(SyncGateFaultsTest, TheFirstStepHasTheLongLeaseAndTheNextTheShortOne) {
  Start(1, 2);
  Acquire(a);
  Pass(kStartLease - kSecond);
  EXPECT_TRUE(StatsOf(a).live);
  Give(a);
  Update();
  Acquire(a);
  ExpectToExpireAfter(kLease, a);
}

TEST_F(SyncGateFaultsTest, ANewSessionsFirstStepHasTheLongLeaseAgain) {
  Start(1, 3);
  Give(a);
  Update();
  Acquire(a, Kind::kFirst);
  Pass(kStartLease - kSecond);
  EXPECT_TRUE(StatsOf(a).live);
}

TEST_F(SyncGateFaultsTest, PollSaysWhenTheNextLeaseEnds) {
  Start(1, 1);
  Give(a);
  Update();
  EXPECT_TRUE(StatsOf(a).live);
  const SyncGate::Time next = gate->Poll();
  EXPECT_EQ(next, now + kLease);
  now = next - SyncGate::Time(1);
  gate->Poll();
  EXPECT_TRUE(StatsOf(a).live);
  now = next;
  gate->Poll();
  EXPECT_FALSE(StatsOf(a).live);
}

TEST_F(SyncGateFaultsTest, EveryCallRenewsTheLease) {
  Start(2, 2);
  Give(a);  // after its first step
  Give(b);
  Update();
  const auto of_a = Acquire(a);
  const auto half = std::chrono::seconds(40);
  Pass(half);
  EXPECT_EQ(Admit(a, of_a->value), Admission::kAdmitted);
  Pass(half);
  EXPECT_TRUE(Commit(a, of_a->value));
  Pass(half);
  EXPECT_TRUE(StatsOf(a).live);
  EXPECT_FALSE(StatsOf(b).live);
}

TEST_F(SyncGateFaultsTest, WaitingIsNotSilence) {
  Start(2, 2);
  Give(a);
  const auto waiting = Acquire(a);
  for (int minute = 0; minute < 9; ++minute) {
    Pass(kLease);
  }
  EXPECT_TRUE(waiting->waits());
  EXPECT_TRUE(StatsOf(a).live);
}

TEST_F(SyncGateFaultsTest, TheLeaseOfAWaiterThatIsGoneBeginsWithItsGrant) {
  Start(2, 2);
  Give(a);
  Give(b);
  const auto of_b = Acquire(b);
  Pass(kStartLease);  // it has not been heard of meanwhile
  Update();
  ASSERT_TRUE(of_b->granted());
  EXPECT_FALSE(StatsOf(a).live);
  EXPECT_TRUE(StatsOf(b).live);
  Pass(kLease);
  EXPECT_FALSE(StatsOf(b).live);
  EXPECT_EQ(StatsOf(b).expired, 1);
}

TEST_F(SyncGateFaultsTest, AWaiterWhoseCallIsCancelledExpiresLater) {
  // Killed while waiting: its server's connections break, which cancels.
  Start(2, 2);
  Give(a);
  Give(b);
  const auto of_b = Acquire(b);
  gate->Cancel(of_b->id);
  Update();
  Give(a);
  const auto again = Acquire(a);
  Pass(kLease);
  EXPECT_TRUE(again->granted());
}

// --- Lost between admit and commit ---

TEST_F(SyncGateFaultsTest, AnAbortedContributionVoidsTheRound) {
  Start(3, 3);
  Give(a);
  const auto waiting = Acquire(a);
  const auto of_b = Acquire(b);
  const auto of_c = Acquire(c);
  Admit(b, of_b->value);
  const int64_t round = gate->Stats().round;
  Abort(b, of_b->value);
  EXPECT_EQ(gate->Stats().round, round + 1);
  EXPECT_EQ(gate->Stats().step, 0);
  EXPECT_EQ(gate->Stats().voided, 1);
  EXPECT_EQ(gate->Stats().aborted, 1);
  EXPECT_EQ(StatsOf(a).voided, 1);
  // All acquire anew, and nothing of the old round counts.
  EXPECT_TRUE(waiting->granted());
  EXPECT_EQ(Admit(c, of_c->value), Admission::kStale);
  EXPECT_TRUE(Contribute(a, waiting->value));
  Give(b);
  Give(c);
  EXPECT_EQ(Update(), 3);
  EXPECT_EQ(gate->Stats().step, 1);
}

TEST_F(SyncGateFaultsTest, ContributionsThatExpireVoidTheRoundOnce) {
  Start(3, 3);
  const SyncGate::Permit of_a = BeginPush(a);
  BeginPush(b);
  Pass(kLease);
  EXPECT_EQ(gate->Stats().voids, 1);
  EXPECT_EQ(gate->Stats().aborted, 2);
  EXPECT_EQ(gate->Stats().expired, 2);
  EXPECT_EQ(StatsOf(a).expired, 1);
  EXPECT_FALSE(Commit(a, of_a));
}

// --- Steps and pushes that outlast the lease ---

TEST_F(SyncGateFaultsTest, StepsThatAlwaysOutlastTheLeaseAreWaitedFor) {
  // There are four workers, each of whose steps takes 90 s, with leases of 60
  // s.
  Start(4, 4);
  std::vector<AcquireCall> calls(4);
  for (int update = 0; update < 100; ++update) {
    for (int task = 0; task < 4; ++task) {
      calls[task] = Acquire(Worker(task));
    }
    for (int second = 0; second < 90; ++second) {
      Pass(kSecond);
    }
    for (int task = 0; task < 4; ++task) {
      ASSERT_TRUE(Contribute(Worker(task), calls[task]->value));
      ASSERT_EQ(StatsOf(Worker(task)).contributed, update + 1);
    }
    ASSERT_EQ(Update(), 4);
  }
  EXPECT_EQ(gate->Stats().applied, 400);
  EXPECT_EQ(gate->Stats().expired, 0);
}

TEST_F(SyncGateFaultsTest, AStepThatOnceOutlastsTheLeaseIsGivenUpOnce) {
  // The worker may write a checkpoint under the permit, for example.
  Start(1, 1);
  Give(a);
  Update();
  const auto step_for = [this](SyncGate::Time time) {
    const auto call = Acquire(a);
    Pass(time);
    Contribute(a, call->value);
    Update();
    return StatsOf(a).expired;
  };
  EXPECT_EQ(step_for(2 * kLease), 1);
  EXPECT_EQ(step_for(2 * kLease), 1);
  EXPECT_EQ(step_for(4 * kLease - kSecond), 1);
  EXPECT_EQ(StatsOf(a).contributed, 4);
}

TEST_F(SyncGateFaultsTest, AFirstStepIsForgottenWhenTheSecondIsOver) {
  Start(1, 1);
  const auto of_a = Acquire(a);
  Pass(100 * kSecond);
  Contribute(a, of_a->value);
  Update();
  EXPECT_EQ(gate->Poll(), now + 2 * 100 * kSecond);
  Give(a);
  Update();
  EXPECT_EQ(gate->Poll(), now + kLease);
}

TEST_F(SyncGateFaultsTest, PushesThatAlwaysOutlastTheLeaseVoidOneRound) {
  Start(2, 2);
  int64_t num_updates = 0;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto of_a = Acquire(a);
    const auto of_b = Acquire(b);
    ASSERT_TRUE(of_a->granted());
    ASSERT_TRUE(of_b->granted());
    EXPECT_EQ(Admit(a, of_a->value), Admission::kAdmitted);
    EXPECT_EQ(Admit(b, of_b->value), Admission::kAdmitted);
    Pass(11 * kLease);
    const bool counts = Commit(a, of_a->value);
    EXPECT_EQ(Commit(b, of_b->value), counts);
    num_updates += counts ? Update() / 2 : 0;
  }
  EXPECT_EQ(gate->Stats().voids, 1);
  EXPECT_EQ(num_updates, 9);
}

TEST_F(SyncGateFaultsTest, WhoGivesUpSlowPushesAndBeginsAnewIsGivenMoreTime) {
  Start(2, 2);
  BeginPush(a);
  Pass(2 * kLease);
  EXPECT_EQ(gate->Stats().voids, 1);
  const auto again = Acquire(a);  // and never committed
  Admit(a, again->value);
  Pass(4 * kLease - kSecond);
  EXPECT_TRUE(Commit(a, again->value));
}

TEST_F(SyncGateFaultsTest, NoSilenceIsWaitedForLongerThanTwiceTheStartLease) {
  Start(2, 2);
  const auto cut_off = Acquire(a);
  Pass(10 * kStartLease);
  EXPECT_EQ(Admit(a, cut_off->value), Admission::kAdmitted);  // and then dies
  Give(b);
  Pass(2 * kStartLease - kSecond);
  EXPECT_EQ(gate->Stats().voids, 0);
  Pass(kSecond);
  EXPECT_EQ(gate->Stats().voids, 1);
}

TEST_F(SyncGateFaultsTest, ANewIncarnationIsNotTreatedWithTheOldOnesPatience) {
  Start(1, 1);
  BeginPush(a);
  Pass(2 * kLease);
  BeginPush(restarted);
  Pass(kLease);
  EXPECT_EQ(gate->Stats().voids, 2);
}

// --- Permits that came too late ---

TEST_F(SyncGateFaultsTest, AReturnedPermitFreesItsPlace) {
  Start(1, 1);
  const auto of_a = Acquire(a);
  const auto of_b = Acquire(b);
  gate->ReturnPermit(a, of_a->value);
  EXPECT_TRUE(of_b->granted());
}

TEST_F(SyncGateFaultsTest, AReturnedPermitIsNotTheWorkersNextOfTheRound) {
  Start(1, 1);
  const auto cancelled = Acquire(a);
  const auto anew = Acquire(a);
  EXPECT_EQ(cancelled->value.round, anew->value.round);
  gate->ReturnPermit(a, cancelled->value);
  EXPECT_TRUE(Acquire(b)->waits());  // the place is still taken
  EXPECT_EQ(Admit(a, anew->value), Admission::kAdmitted);
  gate->ReturnPermit(a, cancelled->value);
  gate->ReturnPermit(a, anew->value);  // it was used already
  EXPECT_EQ(gate->Stats().voids, 0);
  EXPECT_TRUE(Commit(a, anew->value));
}

TEST_F(SyncGateFaultsTest, AReturnedPassIsThereForOthers) {
  Start(1, 1);
  const auto permit = Acquire(a);
  gate->AddPasses(1);
  const auto pass = Acquire(b);
  ASSERT_TRUE(pass->granted());
  const auto waiting = Acquire(c);
  EXPECT_TRUE(waiting->waits());
  gate->ReturnPermit(b, pass->value);
  EXPECT_EQ(StatsOf(b).phase, GatePhase::kIdle);
  ASSERT_TRUE(waiting->granted());
  EXPECT_EQ(waiting->value.round, pass->value.round);
  EXPECT_TRUE(Contribute(a, permit->value));
}

TEST_F(SyncGateFaultsTest, AReturnedPassOfAnotherGenerationIsNone) {
  Start(1, 1);
  Acquire(a);
  gate->AddPasses(1);
  const auto pass = Acquire(b);
  Open(0);
  Acquire(a);
  gate->ReturnPermit(b, pass->value);
  EXPECT_TRUE(Acquire(c)->waits());
}

TEST_F(SyncGateFaultsTest, AReplacedContributionVoidsTheRound) {
  Start(2, 2);
  const auto of_a = Acquire(a);
  Give(b);
  Admit(a, of_a->value);
  const auto anew = Acquire(restarted);
  EXPECT_EQ(gate->Stats().voids, 1);
  ASSERT_TRUE(anew->granted());
  EXPECT_FALSE(Commit(a, of_a->value));
  EXPECT_TRUE(Contribute(restarted, anew->value));
  Give(b);
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateFaultsTest, ASecondAcquireGivesUpWhatTheFirstHeld) {
  Start(2, 2);
  const SyncGate::Permit first = BeginPush(a);
  const auto second = Acquire(a);
  EXPECT_EQ(gate->Stats().voids, 1);
  EXPECT_TRUE(second->granted());
  EXPECT_FALSE(Commit(a, first));
}

TEST_F(SyncGateFaultsTest, ASecondAdmitGivesUpWhatTheFirstPushed) {
  Start(2, 2);
  const SyncGate::Permit call = BeginPush(a);
  EXPECT_EQ(Admit(a, call), Admission::kStale);
  EXPECT_EQ(gate->Stats().voids, 1);
  EXPECT_FALSE(Commit(a, call));
}

TEST_F(SyncGateFaultsTest, OneWhoLeavesBetweenAdmitAndCommitVoidsTheRound) {
  Start(2, 2);
  BeginPush(a);
  gate->Leave(a);
  EXPECT_EQ(gate->Stats().voids, 1);
}

// --- Replaced ---

TEST_F(SyncGateFaultsTest, ANewIncarnationTakesThePlaceOfThePermit) {
  Start(1, 1);
  const auto of_a = Acquire(a);
  EXPECT_TRUE(Acquire(restarted)->granted());
  EXPECT_EQ(Admit(a, of_a->value), Admission::kStale);
  EXPECT_EQ(gate->Stats().voids, 0);
}

TEST_F(SyncGateFaultsTest, ANewIncarnationEndsTheWaitOfTheOld) {
  Start(1, 1);
  Acquire(b);
  const auto old = Acquire(a);
  const auto fresh = Acquire(restarted);
  EXPECT_TRUE(old->ended_with(GateStatus::kAborted));
  EXPECT_TRUE(fresh->waits());
  EXPECT_EQ(gate->Stats().live, 2);
}

TEST_F(SyncGateFaultsTest, WhatTheOldIncarnationCommittedStaysItsShare) {
  Start(2, 2);
  Give(a);
  const auto waiting = Acquire(restarted);
  EXPECT_TRUE(waiting->waits());
  Give(b);
  EXPECT_EQ(Update(), 2);
  EXPECT_TRUE(waiting->granted());
}

TEST_F(SyncGateFaultsTest, CallsOfADeadIncarnationHaveNoEffect) {
  Start(2, 2);
  const auto old = Acquire(a);
  const SyncGate::Permit fresh = BeginPush(restarted);
  EXPECT_EQ(Admit(a, old->value), Admission::kStale);
  EXPECT_FALSE(Commit(a, old->value));
  Abort(a, old->value);
  gate->Leave(a);
  EXPECT_TRUE(Commit(restarted, fresh));
  EXPECT_EQ(gate->Stats().voids, 0);
  EXPECT_EQ(gate->Stats().live, 2);
}

TEST_F(SyncGateFaultsTest, AnAcquireOfADeadIncarnationIsAborted) {
  Start(1, 1);
  Acquire(a);
  const auto fresh = Acquire(restarted);
  const auto zombie = Acquire(a);
  EXPECT_TRUE(zombie->ended_with(GateStatus::kAborted));
  EXPECT_TRUE(Contribute(restarted, fresh->value));
  EXPECT_EQ(Update(), 1);
}

TEST_F(SyncGateFaultsTest, ANewIncarnationsFirstStepHasTheLongLease) {
  Start(1, 3);
  Give(a);
  Update();
  Acquire(restarted);
  Pass(kLease);
  EXPECT_TRUE(StatsOf(a).live);
}

// --- Stopped, and continued ---

TEST_F(SyncGateFaultsTest, AnExpiredWorkerThatCallsAgainIsLiveAgain) {
  Start(2, 2);
  const auto of_b = Acquire(b);
  Give(a);
  Pass(kStartLease);
  EXPECT_EQ(gate->Stats().live, 0);
  // Its gradient still belongs to the present round, and there is room.
  EXPECT_TRUE(Contribute(b, of_b->value));
  EXPECT_EQ(gate->Stats().live, 1);
  EXPECT_TRUE(Acquire(a)->waits());  // the round is full
  EXPECT_EQ(gate->Stats().live, 2);
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateFaultsTest, AnExpiredWorkerComesTooLateForAFullRound) {
  Start(2, 2);
  const auto of_b = Acquire(b);
  Give(a);
  const auto again = Acquire(a);
  Pass(kStartLease);
  ASSERT_TRUE(again->granted());
  EXPECT_TRUE(Contribute(a, again->value));
  EXPECT_EQ(Admit(b, of_b->value), Admission::kLate);
  const auto of_b_again = Acquire(b);
  EXPECT_TRUE(of_b_again->waits());
  Update();
  EXPECT_TRUE(of_b_again->granted());
}

TEST_F(SyncGateFaultsTest, AnExpiredPermitIsNotGivenBackTwice) {
  Start(2, 2);
  const auto of_a = Acquire(a);
  Pass(kStartLease);
  Abort(a, of_a->value);
  EXPECT_TRUE(Acquire(b)->granted());
  EXPECT_TRUE(Acquire(c)->granted());
  EXPECT_TRUE(Acquire(Worker(3))->waits());
}

// --- Never seen ---

TEST_F(SyncGateFaultsTest, WorkersNeverSeenAreExpectedFromTheOpeningOn) {
  Make(Options(2, 2));
  const auto first = Acquire(a);
  Pass(10 * kStartLease);  // the chief comes last
  generation = Open(0);
  EXPECT_TRUE(Contribute(a, first->value));
  const auto again = Acquire(a);
  PassUntilEnd(kStartLease, *again);
  EXPECT_TRUE(again->granted());
}

TEST_F(SyncGateFaultsTest, OneMoreWorkerThanTheTotalDoesNotStopARound) {
  Start(2, 2);
  const auto of_a = Acquire(a);
  const auto of_c = Acquire(c);
  const auto of_b = Acquire(b);
  EXPECT_TRUE(of_b->waits());
  EXPECT_TRUE(Contribute(a, of_a->value));
  EXPECT_TRUE(Contribute(c, of_c->value));
  EXPECT_EQ(Update(), 2);
  EXPECT_TRUE(of_b->granted());
}

// --- All gone ---

TEST_F(SyncGateFaultsTest, TheLastWorkerGivesAllShares) {
  Start(4, 4);
  for (int task = 1; task < 4; ++task) {
    Acquire(Worker(task));
  }
  Give(a);
  const auto again = Acquire(a);
  Pass(kStartLease);
  EXPECT_TRUE(Contribute(a, again->value));
  Give(a);
  Give(a);
  EXPECT_EQ(Update(), 4);
}

TEST_F(SyncGateFaultsTest, ARoundThatAllHaveLeftFillsWhenOneComesBack) {
  Start(3, 3);
  for (const GateWorker& worker : {a, b, c}) {
    Acquire(worker);
    gate->Leave(worker);
  }
  EXPECT_EQ(gate->Stats().live, 0);
  Give(b);
  Give(b);
  Give(b);
  EXPECT_EQ(Update(), 3);
}

TEST_F(SyncGateFaultsTest, WithoutALeaseWorkersWaitForTheChief) {
  Start(1, 1);
  Give(a);
  const auto waiting = Acquire(a);
  Pass(std::chrono::hours(100));
  EXPECT_TRUE(waiting->waits());
}

// Its message was under way when the step was begun again. A worker that waits
// is not silent, so nobody would wait for it to commit.
TEST_F(SyncGateFaultsTest, AnAbandonedStepIsNotAdmittedWhileItsWorkerWaits) {
  Start(1, 1, /*strict=*/false);
  const auto abandoned = Acquire(a);
  ASSERT_TRUE(abandoned->granted());
  const auto of_b = Acquire(b);
  const auto again = Acquire(a);
  ASSERT_TRUE(of_b->granted());
  ASSERT_TRUE(again->waits());
  EXPECT_EQ(Admit(a, abandoned->value), Admission::kStale);
  EXPECT_TRUE(Contribute(b, of_b->value));
  EXPECT_EQ(Update(), 1);
  EXPECT_TRUE(again->granted());
}

}  // namespace
}  // namespace tf_syncrep
