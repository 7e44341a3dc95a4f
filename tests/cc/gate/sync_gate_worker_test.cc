// SyncGate for workers: permits, shares, admission and commits.

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/cc/gate/gate_fixture.h"

namespace tf_syncrep {
namespace {

using SyncGateWorkerTest = GateTest;

TEST_F(SyncGateWorkerTest, AcquireWaitsForTheFirstOpen) {
  Make(Options(2, 2));
  const auto first = Acquire(a, Kind::kFirst);
  const auto next = Acquire(b);
  EXPECT_TRUE(first->waits());
  EXPECT_TRUE(next->waits());
  generation = Open(7);
  ASSERT_TRUE(first->granted());
  ASSERT_TRUE(next->granted());
  EXPECT_EQ(first->value.step, 7);
  EXPECT_EQ(first->value.generation, generation);
}

TEST_F(SyncGateWorkerTest, NothingIsAdmittedBeforeTheFirstOpen) {
  Make({});
  const auto wait = Acquire(a);
  EXPECT_EQ(Admit(a, {0, 0, 0}), Admission::kStale);
  EXPECT_FALSE(Commit(a, {0, 0, 0}));
  generation = Open(0);
  EXPECT_TRUE(wait->granted());
}

TEST_F(SyncGateWorkerTest, CapacityIsTheLargerOfQuorumAndTotal) {
  for (const auto& [quorum, total] : {std::pair{2, 3}, {3, 1}}) {
    Start(quorum, total, /*strict=*/false);
    EXPECT_TRUE(Acquire(a)->granted());
    EXPECT_TRUE(Acquire(b)->granted());
    EXPECT_TRUE(Acquire(c)->granted());
    EXPECT_TRUE(Acquire(Worker(3))->waits());
  }
}

TEST_F(SyncGateWorkerTest, ContributionsTakeUpCapacity) {
  Start(2, 2, /*strict=*/false);
  Give(a);
  EXPECT_TRUE(Acquire(b)->granted());
  EXPECT_TRUE(Acquire(c)->waits());
}

TEST_F(SyncGateWorkerTest, NobodyStartsOnceTheQuorumIsAdmitted) {
  Start(2, 5, /*strict=*/false);
  const auto of_a = Acquire(a);
  const auto of_b = Acquire(b);
  Admit(a, of_a->value);
  Admit(b, of_b->value);
  EXPECT_TRUE(Acquire(c)->waits());
  Commit(a, of_a->value);
  Commit(b, of_b->value);
}

TEST_F(SyncGateWorkerTest, SharesAreRoundedUp) {
  Start(/*quorum=*/3, /*total=*/2);
  Give(a);
  Give(a);
  EXPECT_TRUE(Acquire(a)->waits());
  Give(b);
  EXPECT_EQ(Update(), 3);
}

TEST_F(SyncGateWorkerTest, OneWorkerFillsAQuorumAboveTheTotal) {
  Start(/*quorum=*/3, /*total=*/1);
  Give(a);
  Give(a);
  Give(a);
  EXPECT_TRUE(Acquire(a)->waits());
  EXPECT_EQ(Update(), 3);
}

TEST_F(SyncGateWorkerTest, InWorkConservingModeTheFastGiveMore) {
  Start(3, 3, /*strict=*/false);
  Give(a);
  Give(a);
  Give(a);
  EXPECT_EQ(Update(), 3);
}

TEST_F(SyncGateWorkerTest, AHugeQuorumDoesNotOverflow) {
  Start(INT64_MAX, 2);
  Give(a);
  Give(a);
  EXPECT_TRUE(Acquire(a)->granted());
}

TEST_F(SyncGateWorkerTest, WithQuorumWEachRoundHasOneGradientOfEachWorker) {
  // The order in which they come and finish does not matter.
  constexpr int kWorkers = 4;
  std::vector<int> order(kWorkers);
  std::iota(order.begin(), order.end(), 0);
  do {
    Start(kWorkers, kWorkers);
    std::vector<AcquireCall> calls(kWorkers);
    for (const int task : order) {
      calls[task] = Acquire(Worker(task));
    }
    for (int64_t step = 0; step < 3; ++step) {
      for (const int task : order) {
        ASSERT_TRUE(calls[task]->granted());
        EXPECT_EQ(calls[task]->value.step, step);
        ASSERT_TRUE(Contribute(Worker(task), calls[task]->value));
        calls[task] = Acquire(Worker(task));
        EXPECT_TRUE(calls[task]->waits());
      }
      EXPECT_EQ(Update(), kWorkers);
      for (int task = 0; task < kWorkers; ++task) {
        EXPECT_EQ(StatsOf(Worker(task)).contributed, step + 1);
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(SyncGateWorkerTest, ABackupWorkerThatComesLateIsDropped) {
  Start(/*quorum=*/2, /*total=*/3);
  const auto of_a = Acquire(a);
  const auto of_b = Acquire(b);
  const auto of_c = Acquire(c);
  EXPECT_TRUE(Contribute(a, of_a->value));
  EXPECT_TRUE(Contribute(b, of_b->value));
  EXPECT_EQ(Admit(c, of_c->value), Admission::kLate);
  // A worker that has given its share waits like one that came late.
  const auto next_of_a = Acquire(a);
  const auto next_of_c = Acquire(c);
  EXPECT_TRUE(next_of_a->waits());
  EXPECT_TRUE(next_of_c->waits());
  EXPECT_EQ(Update(), 2);
  EXPECT_TRUE(next_of_a->granted());
  EXPECT_TRUE(next_of_c->granted());
  EXPECT_EQ(StatsOf(c).late, 1);
  EXPECT_EQ(StatsOf(c).contributed, 0);
}

TEST_F(SyncGateWorkerTest, AGradientOfARoundThatIsOverIsStale) {
  Start(2, 3);
  const auto of_c = Acquire(c);
  Give(a);
  Give(b);
  Update();
  EXPECT_EQ(Admit(c, of_c->value), Admission::kStale);
  EXPECT_EQ(StatsOf(c).stale, 1);
  EXPECT_TRUE(Acquire(c)->granted());
}

TEST_F(SyncGateWorkerTest, AStaleAdmitLeavesThePermitOfTheNextStepAlone) {
  Start(2, 2);
  const SyncGate::Permit old = Give(a);
  Give(b);
  Update();
  const auto fresh = Acquire(a);
  ASSERT_TRUE(fresh->granted());
  EXPECT_EQ(Admit(a, old), Admission::kStale);
  EXPECT_TRUE(Acquire(b)->granted());
  EXPECT_TRUE(Acquire(c)->waits());  // a's place is not free
}

TEST_F(SyncGateWorkerTest, AStaleAdmitDoesNotVoidWhatIsInFlight) {
  Start(2, 2);
  const SyncGate::Permit old = Give(a);
  Give(b);
  Update();
  const auto fresh = Acquire(a);
  ASSERT_EQ(Admit(a, fresh->value), Admission::kAdmitted);
  EXPECT_EQ(Admit(a, old), Admission::kStale);
  EXPECT_EQ(gate->Stats().voids, 0);
  EXPECT_TRUE(Commit(a, fresh->value));
}

TEST_F(SyncGateWorkerTest, AStrangerIsStale) {
  Start(1, 1);
  EXPECT_EQ(Admit(a, {generation, gate->Stats().round, 0}), Admission::kStale);
  EXPECT_FALSE(Commit(a, {generation, gate->Stats().round, 0}));
  EXPECT_EQ(gate->Stats().stale, 1);
}

TEST_F(SyncGateWorkerTest, WhatTheWorkerFindsUnfitIsRejectedAndComputedAnew) {
  Start(1, 1);
  const auto call = Acquire(a);
  EXPECT_EQ(Admit(a, call->value, /*is_fit=*/false), Admission::kRejected);
  EXPECT_EQ(StatsOf(a).rejected, 1);
  Give(a);
  Update();
}

TEST_F(SyncGateWorkerTest, AnUnfitGradientOfAnOldRoundIsStale) {
  Start(1, 2);
  const auto of_b = Acquire(b);
  Give(a);
  Update();
  EXPECT_EQ(Admit(b, of_b->value, /*is_fit=*/false), Admission::kStale);
  EXPECT_EQ(StatsOf(b).rejected, 0);
}

TEST_F(SyncGateWorkerTest, APermitThatWasGrantedIsGoodThoughSharesShrink) {
  Start(2, 2);
  Give(a);
  Acquire(b);
  const auto second = Acquire(a);
  EXPECT_TRUE(second->waits());
  gate->Leave(b);  // its share is a's now
  ASSERT_TRUE(second->granted());
  const auto of_b = Acquire(b);  // back
  EXPECT_TRUE(of_b->waits());
  EXPECT_TRUE(Contribute(a, second->value));
  Update();
  EXPECT_TRUE(of_b->granted());
}

TEST_F(SyncGateWorkerTest, ACommitCountsOnce) {
  Start(2, 2);
  const SyncGate::Permit permit = Give(a);
  EXPECT_FALSE(Commit(a, permit));
  EXPECT_EQ(gate->Stats().pending, 1);
}

TEST_F(SyncGateWorkerTest, ACommitWithoutAdmissionDoesNotCount) {
  Start(1, 1);
  const auto call = Acquire(a);
  EXPECT_FALSE(Commit(a, call->value));
  EXPECT_EQ(gate->Stats().committed, 0);
}

TEST_F(SyncGateWorkerTest, AnAbortedPermitFreesItsPlace) {
  Start(1, 1);
  const auto of_a = Acquire(a);
  const auto of_b = Acquire(b);
  EXPECT_TRUE(of_b->waits());
  Abort(a, of_a->value);
  EXPECT_TRUE(of_b->granted());
  EXPECT_EQ(gate->Stats().voids, 0);
}

TEST_F(SyncGateWorkerTest, AnAbortAfterTheCommitHasNoEffect) {
  Start(2, 2);
  const SyncGate::Permit permit = Give(a);
  Abort(a, permit);
  EXPECT_EQ(gate->Stats().pending, 1);
  EXPECT_EQ(gate->Stats().voids, 0);
}

TEST_F(SyncGateWorkerTest, AnAbortOfAnOldRoundHasNoEffect) {
  Start(2, 2);
  const SyncGate::Permit old = Give(a);
  Give(b);
  Update();
  const SyncGate::Permit fresh = BeginPush(a);
  Abort(a, old);
  EXPECT_TRUE(Commit(a, fresh));
}

TEST_F(SyncGateWorkerTest, ACancelledAcquireNoLongerWaits) {
  Start(2, 2);
  Give(a);
  Acquire(b);
  const auto for_a_share = Acquire(a);
  const auto for_room = Acquire(c);
  for (const auto& waiting : {for_a_share, for_room}) {
    EXPECT_TRUE(gate->Cancel(waiting->id));
    EXPECT_TRUE(waiting->ended_with(GateStatus::kCancelled));
    EXPECT_FALSE(gate->Cancel(waiting->id));
  }
}

TEST_F(SyncGateWorkerTest, AfterItsGrantAnAcquireIsCancelledByAnAbort) {
  Start(1, 1);
  const auto of_a = Acquire(a);
  const auto of_b = Acquire(b);
  EXPECT_FALSE(gate->Cancel(of_a->id));  // too late: it was granted
  Abort(a, of_a->value);
  EXPECT_TRUE(of_b->granted());
}

TEST_F(SyncGateWorkerTest, WhatTheLeaverCommittedStays) {
  Start(2, 2);
  Give(a);
  gate->Leave(a);
  EXPECT_EQ(gate->Stats().pending, 1);
  Give(b);
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateWorkerTest, LeavingEndsTheLeaversWait) {
  Start(2, 2);
  Give(a);
  const auto waiting = Acquire(a);
  gate->Leave(a);
  EXPECT_TRUE(waiting->ended_with(GateStatus::kCancelled));
}

TEST_F(SyncGateWorkerTest, OneWhoLeavesWithoutEverAcquiringIsNotWaitedFor) {
  Start(2, 2);
  Give(a);
  const auto again = Acquire(a);
  EXPECT_TRUE(again->waits());
  gate->Leave(b);
  EXPECT_TRUE(again->granted());
  EXPECT_EQ(gate->Stats().live, 1);
}

TEST_F(SyncGateWorkerTest, CallsAfterLeavingDoNotBringALeaverBack) {
  Start(2, 2);
  const auto of_b = Acquire(b);
  gate->Leave(b);
  EXPECT_EQ(Admit(b, of_b->value), Admission::kStale);
  EXPECT_FALSE(Commit(b, of_b->value));
  Abort(b, of_b->value);
  EXPECT_EQ(gate->Stats().live, 1);
  Give(a);
  Give(a);
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateWorkerTest, ALeaverThatAcquiresIsBack) {
  Start(2, 2);
  Acquire(b);
  gate->Leave(b);
  Give(a);
  Give(b);
  EXPECT_EQ(gate->Stats().live, 2);
  EXPECT_EQ(Update(), 2);
}

TEST_F(SyncGateWorkerTest, TheTimeInAcquireIsCounted) {
  Start(2, 2);
  Give(a);
  Acquire(a);
  Pass(std::chrono::seconds(3));
  Give(b);
  Update();
  EXPECT_EQ(StatsOf(a).waited, std::chrono::seconds(3));
  EXPECT_EQ(StatsOf(b).waited, std::chrono::seconds(0));
}

}  // namespace
}  // namespace tf_syncrep
