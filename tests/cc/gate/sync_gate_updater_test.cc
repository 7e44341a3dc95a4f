// SyncGate for the updater and the chief: quorum, advance, flush, drain,
// configure, open, close, fail and passes.

#include "tests/cc/gate/gate_fixture.h"

namespace tf_syncrep {
namespace {

using SyncGateUpdaterTest = GateTest;

TEST(SyncGateOptionsTest, OptionsMustBePositive) {
  SyncGateOptions options;
  EXPECT_TRUE(SyncGate::CheckOptions(options).ok());
  options.quorum = 0;
  const GateStatus status = SyncGate::CheckOptions(options);
  EXPECT_EQ(status.code, GateStatus::kInvalidArgument);
  EXPECT_EQ(status.message,
            "replicas_to_aggregate must be at least 1. Received: 0");
}

TEST_F(SyncGateUpdaterTest, TheUpdaterIsRefusedBeforeTheFirstOpen) {
  Make({});
  const int code = GateStatus::kFailedPrecondition;
  EXPECT_TRUE(WaitQuorum()->ended_with(code));
  EXPECT_TRUE(Flush()->ended_with(code));
  EXPECT_TRUE(Drain()->ended_with(code));
  bool advanced;
  EXPECT_EQ(gate->Advance(0, 0, 1, &advanced).code, code);
  EXPECT_FALSE(advanced);
}

TEST_F(SyncGateUpdaterTest, AQuorumIsCommittedAndNotMerelyAdmitted) {
  Start(2, 2);
  const auto quorum = WaitQuorum();
  const auto of_a = Acquire(a);
  const auto of_b = Acquire(b);
  Admit(a, of_a->value);
  Admit(b, of_b->value);
  Commit(b, of_b->value);
  EXPECT_TRUE(quorum->waits());
  Commit(a, of_a->value);
  ASSERT_TRUE(quorum->granted());
  EXPECT_EQ(quorum->value.num_gradients, 2);
}

TEST_F(SyncGateUpdaterTest, TheSameRoundIsHandedOutUntilItIsAdvanced) {
  Start(1, 1);
  Give(a);
  const auto first = WaitQuorum();
  const auto second = WaitQuorum();
  ASSERT_TRUE(first->granted());
  ASSERT_TRUE(second->granted());
  EXPECT_EQ(first->value.round, second->value.round);
  EXPECT_TRUE(Advance(first->value));
  EXPECT_TRUE(WaitQuorum()->waits());
}

TEST_F(SyncGateUpdaterTest, ARoundIsAdvancedOnce) {
  Start(1, 1);
  Give(a);
  const auto quorum = WaitQuorum();
  EXPECT_TRUE(Advance(quorum->value));
  EXPECT_FALSE(Advance(quorum->value));
  EXPECT_EQ(gate->Stats().updates, 1);
  EXPECT_EQ(gate->Stats().step, 1);
}

TEST_F(SyncGateUpdaterTest, ARoundThatIsNotFullCannotBeAdvanced) {
  Start(2, 2);
  Give(a);
  bool advanced;
  const GateStatus status =
      gate->Advance(generation, gate->Stats().round, 1, &advanced);
  EXPECT_EQ(status.code, GateStatus::kFailedPrecondition);
  EXPECT_EQ(status.message,
            "Round 0 cannot end: 1 of 2 gradients are committed.");
  EXPECT_FALSE(advanced);
}

TEST_F(SyncGateUpdaterTest, AQuorumWaitEndsAfterItsTimeout) {
  Start(1, 1);
  const auto quorum = WaitQuorum(std::chrono::seconds(5));
  Pass(std::chrono::seconds(4));
  EXPECT_TRUE(quorum->waits());
  Pass(kSecond);
  EXPECT_TRUE(quorum->ended_with(GateStatus::kDeadlineExceeded));
}

TEST_F(SyncGateUpdaterTest, PollSaysWhenATimeoutEnds) {
  Start(1, 1);
  WaitQuorum(std::chrono::seconds(5));
  EXPECT_EQ(gate->Poll(), now + std::chrono::seconds(5));
}

TEST_F(SyncGateUpdaterTest, ACancelledQuorumWaitLeavesTheRoundToTheNext) {
  Start(1, 1);
  const auto first = WaitQuorum();
  EXPECT_TRUE(gate->Cancel(first->id));
  EXPECT_TRUE(first->ended_with(GateStatus::kCancelled));
  Give(a);
  EXPECT_EQ(Update(), 1);
}

TEST_F(SyncGateUpdaterTest, CancelUpdaterEndsItsWaitsAndNoOthers) {
  Start(2, 2);
  const auto of_b = Acquire(b);
  Give(a);
  const auto waiting = Acquire(a);
  Admit(b, of_b->value);
  const auto quorum = WaitQuorum();
  const auto flush = Flush();
  const auto drain = Drain();
  gate->CancelUpdater(generation - 1);
  EXPECT_TRUE(quorum->waits());
  gate->CancelUpdater(generation);
  EXPECT_TRUE(quorum->ended_with(GateStatus::kCancelled));
  EXPECT_TRUE(flush->ended_with(GateStatus::kCancelled));
  EXPECT_TRUE(drain->ended_with(GateStatus::kCancelled));
  EXPECT_TRUE(waiting->waits());
  EXPECT_TRUE(Commit(b, of_b->value));
  EXPECT_EQ(Update(), 2);
  EXPECT_TRUE(waiting->granted());
}

TEST_F(SyncGateUpdaterTest, WorkerWhoseUpdaterFailedIsToldWhereverItIs) {
  Start(2, 2);
  Give(b);
  Give(a);
  const auto of_b = Acquire(b);
  const auto waiting = Acquire(a);
  gate->CancelUpdater(generation - 1, a);
  EXPECT_TRUE(waiting->waits());
  gate->CancelUpdater(generation, {a.device, a.incarnation + 1});
  EXPECT_TRUE(waiting->waits());
  gate->CancelUpdater(generation, a);
  EXPECT_TRUE(waiting->ended_with(GateStatus::kCancelled));
  EXPECT_TRUE(of_b->waits());
  // It may just have pushed, and only ask now.
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kCancelled));
  // Other calls that stop the updater's waits do not undo it.
  gate->CancelUpdater(generation);
  EXPECT_TRUE(Acquire(a)->ended_with(GateStatus::kCancelled));
  EXPECT_EQ(Open(0), generation + 1);
  EXPECT_TRUE(of_b->granted());
  EXPECT_TRUE(Acquire(a)->granted());
}

TEST_F(SyncGateUpdaterTest, WorkerWhoseUpdaterFailedBeforeItCameIsTold) {
  Start(1, 1);
  Give(b);
  gate->CancelUpdater(generation, a);
  EXPECT_TRUE(Acquire(a, Kind::kFirst)->ended_with(GateStatus::kCancelled));
  EXPECT_EQ(Open(0), generation + 1);
  EXPECT_TRUE(Acquire(a)->granted());
}

TEST_F(SyncGateUpdaterTest,
       WorkerIsNotToldWhenAnUpdaterOrAnotherProcessIsThere) {
  Start(2, 2);
  Give(b);
  Give(a);
  gate->CancelUpdater(generation, a);
  const auto another = Acquire({a.device, a.incarnation + 1});
  EXPECT_TRUE(another->waits());
  gate->CancelUpdater(generation, b);
  const auto quorum = WaitQuorum();
  EXPECT_TRUE(quorum->granted());
  EXPECT_TRUE(Acquire(b)->waits());
}

// --- Flush ---

TEST_F(SyncGateUpdaterTest, AFlushEndsARoundThatIsNotFull) {
  Start(3, 3);
  Give(a);
  Give(b);
  const auto flush = Flush();
  ASSERT_TRUE(flush->granted());
  EXPECT_EQ(flush->value.num_gradients, 2);
  EXPECT_TRUE(Advance(flush->value));
  EXPECT_EQ(gate->Stats().applied, 2);
}

TEST_F(SyncGateUpdaterTest, AFlushWaitsForWhatIsInFlightAndAdmitsNoMore) {
  Start(3, 3);
  const auto of_a = Acquire(a);
  const auto of_b = Acquire(b);
  Admit(a, of_a->value);
  const auto flush = Flush();
  EXPECT_TRUE(flush->waits());
  EXPECT_EQ(Admit(b, of_b->value), Admission::kLate);
  const auto of_c = Acquire(c);
  EXPECT_TRUE(of_c->waits());
  Commit(a, of_a->value);
  ASSERT_TRUE(flush->granted());
  EXPECT_EQ(flush->value.num_gradients, 1);
  EXPECT_TRUE(of_c->waits());
  EXPECT_EQ(Admit(b, of_b->value), Admission::kLate);
  EXPECT_TRUE(Advance(flush->value));
  EXPECT_TRUE(of_c->granted());
}

TEST_F(SyncGateUpdaterTest, WithNothingToFlushTheRoundStaysOpen) {
  Start(2, 2);
  const auto of_a = Acquire(a);
  const auto flush = Flush();
  ASSERT_TRUE(flush->granted());
  EXPECT_EQ(flush->value.num_gradients, 0);
  EXPECT_TRUE(Contribute(a, of_a->value));
  Give(b);
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateUpdaterTest, AFlushWhoseRoundIsVoidHasNothing) {
  Start(3, 3);
  Give(a);
  const SyncGate::Permit of_b = BeginPush(b);
  const auto flush = Flush();
  Abort(b, of_b);
  ASSERT_TRUE(flush->granted());
  EXPECT_EQ(flush->value.num_gradients, 0);
  EXPECT_TRUE(Acquire(a)->granted());
}

TEST_F(SyncGateUpdaterTest, ACancelledFlushLetsTheRoundFill) {
  Start(2, 2);
  const SyncGate::Permit of_a = BeginPush(a);
  const auto flush = Flush();
  const auto of_b = Acquire(b);
  EXPECT_TRUE(of_b->waits());
  EXPECT_TRUE(gate->Cancel(flush->id));
  EXPECT_TRUE(of_b->granted());
  Commit(a, of_a);
  Contribute(b, of_b->value);
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateUpdaterTest, ACancelledFlushLeavesAnotherFlushAlone) {
  Start(2, 2);
  const SyncGate::Permit of_a = BeginPush(a);
  const auto first = Flush();
  const auto second = Flush();
  EXPECT_TRUE(gate->Cancel(first->id));
  EXPECT_TRUE(Acquire(b)->waits());
  Commit(a, of_a);
  ASSERT_TRUE(second->granted());
  EXPECT_EQ(second->value.num_gradients, 1);
  EXPECT_TRUE(Advance(second->value));
}

TEST_F(SyncGateUpdaterTest, AFlushThatWasGivenUpHoldsNobodyUp) {
  Start(2, 2);
  Give(a);
  const auto flush = Flush();
  ASSERT_TRUE(flush->granted());
  gate->CancelUpdater(generation);
  const auto of_b = Acquire(b);
  EXPECT_TRUE(of_b->waits());  // its update may still be in progress
  const auto quorum = WaitQuorum();
  EXPECT_TRUE(quorum->waits());
  ASSERT_TRUE(of_b->granted());
  EXPECT_EQ(gate->Stats().voided, 1);
  EXPECT_FALSE(Advance(flush->value));  // it was not told to stop in time
  EXPECT_TRUE(Contribute(b, of_b->value));
  Give(a);
  ASSERT_TRUE(quorum->granted());
  EXPECT_EQ(quorum->value.num_gradients, 2);
  EXPECT_TRUE(Advance(quorum->value));
}

TEST_F(SyncGateUpdaterTest, AnotherUpdaterDoesNotEndAFlush) {
  Start(2, 2);
  Give(a);
  const auto flush = Flush();
  WaitQuorum();
  EXPECT_TRUE(Acquire(b)->waits());
  EXPECT_TRUE(Advance(flush->value));
}

// --- Drain ---

TEST_F(SyncGateUpdaterTest, ADrainWaitsUntilAFullRoundIsApplied) {
  Start(2, 2);
  EXPECT_TRUE(Drain()->granted());
  const auto of_a = Acquire(a);
  EXPECT_TRUE(Drain()->granted());  // nothing is in flight yet
  Admit(a, of_a->value);
  const auto drain = Drain();
  EXPECT_TRUE(drain->waits());
  const SyncGate::Permit of_b = BeginPush(b);
  Commit(a, of_a->value);
  Commit(b, of_b);
  EXPECT_TRUE(drain->waits());
  Update();
  EXPECT_TRUE(drain->granted());
}

TEST_F(SyncGateUpdaterTest, ADrainWaitsUntilAFlushedRoundIsApplied) {
  Start(2, 2);
  Give(a);
  const auto flush = Flush();
  const auto drain = Drain();
  EXPECT_TRUE(drain->waits());
  EXPECT_TRUE(Advance(flush->value));
  EXPECT_TRUE(drain->granted());
}

TEST_F(SyncGateUpdaterTest, ADrainDoesNotWaitForARoundThatIsHalfCommitted) {
  Start(2, 2);
  Give(a);
  EXPECT_TRUE(Drain()->granted());
}

// --- Configure ---

TEST_F(SyncGateUpdaterTest, ConfigureHoldsFromTheNextRoundOn) {
  Start(2, 2);
  EXPECT_TRUE(gate->Configure(1, 1).ok());
  EXPECT_EQ(gate->Stats().quorum, 2);
  Give(a);
  EXPECT_TRUE(WaitQuorum()->waits());
  Give(b);
  EXPECT_EQ(Update(), 2);
  EXPECT_EQ(gate->Stats().quorum, 1);
  EXPECT_EQ(gate->Stats().total, 1);
  Give(a);
  EXPECT_EQ(Update(), 1);
}

TEST_F(SyncGateUpdaterTest, ConfigureHoldsAfterAVoidRoundToo) {
  Start(2, 2);
  gate->Configure(1, 1);
  const SyncGate::Permit of_a = BeginPush(a);
  Abort(a, of_a);
  EXPECT_EQ(gate->Stats().quorum, 1);
}

TEST_F(SyncGateUpdaterTest, ConfigureRefusesWhatIsNotPositive) {
  Start(2, 2);
  const GateStatus status = gate->Configure(1, 0);
  EXPECT_EQ(status.code, GateStatus::kInvalidArgument);
  EXPECT_EQ(status.message,
            "total_num_replicas must be at least 1. Received: 0");
  Give(a);
  Give(b);
  Update();
  EXPECT_EQ(gate->Stats().quorum, 2);
}

// --- Open ---

TEST_F(SyncGateUpdaterTest, OpenEndsTheWaitsOfTheLastUpdaterAndNoOthers) {
  Start(2, 2);
  Give(a);
  const auto acquire = Acquire(a);
  BeginPush(b);
  const auto quorum = WaitQuorum();
  const auto flush = Flush();
  const auto drain = Drain();
  generation = Open(5);
  ASSERT_TRUE(acquire->granted());  // with a permit of the new generation
  EXPECT_EQ(acquire->value.generation, generation);
  EXPECT_EQ(acquire->value.step, 5);
  EXPECT_TRUE(quorum->ended_with(GateStatus::kAborted));
  EXPECT_TRUE(flush->ended_with(GateStatus::kAborted));
  EXPECT_TRUE(drain->ended_with(GateStatus::kAborted));
  EXPECT_EQ(gate->Stats().step, 5);
}

TEST_F(SyncGateUpdaterTest, NothingOfAnOldGenerationCountsInTheNew) {
  Start(2, 2);
  const auto of_a = Acquire(a);
  const auto of_b = Acquire(b);
  const auto of_c = Acquire(c);
  Contribute(a, of_a->value);
  Admit(b, of_b->value);
  const int64_t old = generation;
  generation = Open(0);
  EXPECT_FALSE(Commit(b, of_b->value));
  EXPECT_EQ(Admit(a, of_a->value), Admission::kStale);
  EXPECT_EQ(Admit(b, of_b->value), Admission::kStale);
  ASSERT_TRUE(of_c->granted());
  EXPECT_EQ(gate->Stats().voided, 1);
  EXPECT_EQ(gate->Stats().aborted, 1);
  bool advanced;
  EXPECT_EQ(gate->Advance(old, gate->Stats().round, 1, &advanced).code,
            GateStatus::kAborted);
  const int64_t current = generation;
  generation = old;
  EXPECT_TRUE(WaitQuorum()->ended_with(GateStatus::kAborted));
  generation = current;
  EXPECT_TRUE(Contribute(c, of_c->value));
  Give(a);
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateUpdaterTest, OpenWithAFullRoundVoidsIt) {
  Start(1, 1);
  Give(a);
  const auto quorum = WaitQuorum();
  ASSERT_TRUE(quorum->granted());
  const int64_t old = generation;
  generation = Open(0);  // the chief died before it could apply the round
  bool advanced;
  EXPECT_EQ(gate->Advance(old, quorum->value.round, 1, &advanced).code,
            GateStatus::kAborted);
  EXPECT_EQ(gate->Stats().voided, 1);
  EXPECT_EQ(gate->Stats().updates, 0);
}

TEST_F(SyncGateUpdaterTest, OpenClearsPermitsAndPasses) {
  Start(1, 1);
  Acquire(a);
  gate->AddPasses(2);
  generation = Open(0);
  EXPECT_TRUE(Acquire(b)->granted());
  EXPECT_TRUE(Acquire(c)->waits());
}

TEST_F(SyncGateUpdaterTest, RoundsNeverGoBack) {
  Start(1, 1);
  int64_t last = gate->Stats().round;
  for (int i = 0; i < 3; ++i) {
    Give(a);
    Update();
    generation = Open(0);
    EXPECT_GT(gate->Stats().round, last);
    last = gate->Stats().round;
    EXPECT_EQ(gate->Stats().step, 0);
  }
}

TEST_F(SyncGateUpdaterTest, AChiefThatIsBackDoesNotWaitForWhoHadLeft) {
  Start(2, 2);
  Give(b);
  gate->Leave(b);
  generation = Open(0);  // the chief was lost: nothing was closed
  Give(a);
  Give(a);
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateUpdaterTest, ANewTrainingExpectsWhoLeftTheLastOne) {
  Start(2, 2);
  Give(a);
  Give(b);
  Update();
  Close();
  gate->Leave(a);
  gate->Leave(b);
  generation = Open(0);
  EXPECT_EQ(gate->Stats().live, 2);
  Give(a);
  const auto again = Acquire(a);
  EXPECT_TRUE(again->waits());
  Give(b);
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateUpdaterTest, OneWhoIsLateToLeaveAClosedTrainingIsStillExpected) {
  Start(2, 2);
  const auto of_b = Acquire(b);
  Close();
  generation = Open(0);
  gate->Leave(b);  // it leaves the last training
  EXPECT_EQ(gate->Stats().live, 2);
  Give(a);
  const auto again = Acquire(a);
  EXPECT_TRUE(again->waits());
  // This does not last for ever.
  Pass(kStartLease);
  EXPECT_TRUE(again->granted());
}

// --- Passes ---

TEST_F(SyncGateUpdaterTest, WithAsManyPassesAsWorkersTheSecondBatchIsStale) {
  Start(2, 2);
  const GateWorker workers[] = {a, b};
  AcquireCall calls[2];
  for (int i = 0; i < 2; ++i) {
    calls[i] = Acquire(workers[i], Kind::kFirst);
  }
  gate->AddPasses(2);
  // The first train op of each: it contributes, and returns with local step 0.
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(Contribute(workers[i], calls[i]->value));
    calls[i] = Acquire(workers[i]);
    ASSERT_TRUE(calls[i]->granted());
    EXPECT_EQ(calls[i]->value.step, 0);
  }
  EXPECT_EQ(Update(), 2);
  // The second: its batch is dropped, and it returns with 1.
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Admit(workers[i], calls[i]->value), Admission::kStale);
    calls[i] = Acquire(workers[i]);
    ASSERT_TRUE(calls[i]->granted());
    EXPECT_EQ(calls[i]->value.step, 1);
    EXPECT_EQ(StatsOf(workers[i]).stale, 1);
  }
}

TEST_F(SyncGateUpdaterTest, ASecondBatchByPassIsStaleThoughTheRoundGoesOn) {
  Start(2, 2);
  gate->AddPasses(2);
  const auto first = Acquire(a, Kind::kFirst);
  EXPECT_TRUE(Contribute(a, first->value));
  const auto pass = Acquire(a);
  ASSERT_TRUE(pass->granted());
  EXPECT_EQ(Admit(a, pass->value), Admission::kStale);
  EXPECT_TRUE(Contribute(b, Acquire(b, Kind::kFirst)->value));
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateUpdaterTest, APassServesWhereTheWorkerHasNotGivenItsShare) {
  Start(/*quorum=*/2, /*total=*/1);
  gate->AddPasses(1);
  const auto first = Acquire(a, Kind::kFirst);
  EXPECT_TRUE(Contribute(a, first->value));
  const auto pass = Acquire(a);
  EXPECT_TRUE(Contribute(a, pass->value));
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateUpdaterTest, PassesSurviveAdvanceWithTheirStep) {
  Start(1, 1);
  gate->AddPasses(1);
  const auto first = Acquire(a, Kind::kFirst);
  EXPECT_TRUE(Contribute(a, first->value));
  Update();
  const auto pass = Acquire(a);
  ASSERT_TRUE(pass->granted());
  EXPECT_EQ(pass->value.step, 0);
  EXPECT_EQ(Acquire(a)->value.step, 1);
}

TEST_F(SyncGateUpdaterTest, PassesEndWaitsThatAreThere) {
  Start(2, 2);
  Give(a);
  const auto waiting = Acquire(a);
  EXPECT_TRUE(waiting->waits());
  gate->AddPasses(1);
  EXPECT_TRUE(waiting->granted());
}

TEST_F(SyncGateUpdaterTest, AFirstAcquireDoesNotWaitForAnUpdaterToCome) {
  // The chief acquires before it starts its updater; meanwhile others may have
  // filled the round.
  Start(1, 2);
  Give(b);
  const auto chief = Acquire(a, Kind::kFirst);
  ASSERT_TRUE(chief->granted());
  Admission admission;
  gate->Admit(generation, a, chief->value.round, true, &admission);
  EXPECT_EQ(admission, Admission::kLate);
  const auto quorum = WaitQuorum();
  ASSERT_TRUE(quorum->granted());
  EXPECT_TRUE(Acquire(a, Kind::kFirst)->waits());
}

TEST_F(SyncGateUpdaterTest, AFirstAcquireTakesNoPass) {
  Start(1, 1);
  WaitQuorum();
  Acquire(a);
  gate->AddPasses(1);
  EXPECT_TRUE(Acquire(b, Kind::kFirst)->waits());
  EXPECT_TRUE(Acquire(c)->granted());
}

TEST_F(SyncGateUpdaterTest, AnyNumberOfPassesCostsNothing) {
  Start(1, 1);
  gate->AddPasses(INT64_MAX);
  gate->AddPasses(-1);
  Acquire(b, Kind::kFirst);
  EXPECT_TRUE(Acquire(a)->granted());
  EXPECT_TRUE(Acquire(a)->granted());
}

}  // namespace
}  // namespace tf_syncrep
