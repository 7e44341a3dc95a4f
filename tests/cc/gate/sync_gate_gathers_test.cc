// SyncGate that gathers: for a while nobody takes the place of a worker that is
// still to come, in work-conserving mode, too.

#include "tests/cc/gate/gate_fixture.h"

namespace tf_syncrep {
namespace {

class SyncGateGathersTest : public GateTest {
 protected:
  void Gather(int64_t quorum, int64_t total, bool gathers = true) {
    SyncGateOptions options = Options(quorum, total, /*strict=*/false);
    options.gathers = gathers;
    Make(options);
    generation = Open(0);
  }
};

TEST_F(SyncGateGathersTest, FirstToComeWaitsForTheOtherAndThenForNobody) {
  Gather(2, 2);
  Give(a);
  const auto waiting = Acquire(a);
  EXPECT_TRUE(waiting->waits());
  // From now on turns count, and workers may give more than their share.
  const auto of_b = Acquire(b);
  EXPECT_TRUE(waiting->granted());
  EXPECT_TRUE(of_b->waits());
  EXPECT_TRUE(Contribute(a, waiting->value));
  Update();
  EXPECT_TRUE(of_b->granted());
  EXPECT_TRUE(Contribute(b, of_b->value));
  Give(a);
  Update();
  Give(a);
  Give(a);
  Update();
}

TEST_F(SyncGateGathersTest, OneThatDoesNotComeIsWaitedForForALease) {
  Gather(2, 2);
  Give(a);
  const auto waiting = Acquire(a);
  EXPECT_LE(gate->Poll(), now + kLease);
  PassUntilEnd(kLease, *waiting);
  EXPECT_TRUE(waiting->granted());
  EXPECT_TRUE(Contribute(a, waiting->value));
  Update();
  Give(a);
  Give(a);
  Update();
}

TEST_F(SyncGateGathersTest, BackupsAreNotWaitedFor) {
  Gather(2, 3);
  for (int i = 0; i < 3; ++i) {
    Give(a);
    Give(b);
    Update();
  }
}

TEST_F(SyncGateGathersTest, NextTrainingGathersAgainAndALostChiefsDoesNot) {
  Gather(2, 2);
  Give(b);
  Give(a);
  Update();
  generation = Open(1);
  Give(a);
  Give(a);
  Update();
  Close();
  generation = Open(0);
  Give(a);
  EXPECT_TRUE(Acquire(a)->waits());
}

TEST_F(SyncGateGathersTest, OtherGatesLetWhoeverIsThereGoOn) {
  Gather(2, 2, /*gathers=*/false);
  Give(a);
  Give(a);
  Update();
}

}  // namespace
}  // namespace tf_syncrep
