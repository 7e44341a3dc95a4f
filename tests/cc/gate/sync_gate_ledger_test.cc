// The ledger of SyncGate alone: which permits take up room.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tf_syncrep/cc/lib/gate/ledger.h"

namespace tf_syncrep {
namespace {

using std::chrono::seconds;

class LedgerTest : public testing::Test {
 protected:
  LedgerTest() : accounts(kWorkers), ledger(Options()) { ledger.Open(0); }

  static SyncGateOptions Options() {
    SyncGateOptions options;
    options.quorum = 3;
    options.total = 4;
    options.strict = false;
    return options;
  }

  void Grant(GateAccount* account, GateAccount* overdue = nullptr) {
    ledger.Grant(++num_grants, now, overdue, account);
  }

  GateAdmission Admit(GateAccount* account) {
    return ledger.Admit(ledger.generation(), account->round, /*may_give=*/true,
                        /*is_fit=*/true, now, account);
  }

  // Room is counted by the permits that have no spare beside them, each once.
  void CheckLonePermits() {
    int64_t num_lone = 0;
    GateTime last_end{0};
    for (const GateAccount& account : accounts) {
      if (!ledger.HoldsPermit(account)) {
        continue;
      }
      if (account.spare != nullptr) {
        EXPECT_TRUE(ledger.HoldsPermit(*account.spare));
        EXPECT_EQ(account.spare->spare_of, &account);
      } else {
        num_lone++;
        last_end = std::max(last_end, account.permit_end);
        EXPECT_EQ(ledger.lone_permits().by_order().count(account.permit_order),
                  1u);
      }
    }
    ASSERT_EQ(static_cast<int64_t>(ledger.lone_permits().size()), num_lone);
    if (num_lone > 0) {
      EXPECT_EQ(ledger.lone_permits().last_end(), last_end);
    }
  }

  static constexpr int kWorkers = 6;
  std::vector<GateAccount> accounts;
  Ledger ledger;
  GateTime now{0};
  int64_t num_grants = 0;
};

TEST_F(LedgerTest, APermitAndItsSpareTakeTheRoomOfOne) {
  Grant(&accounts[0]);
  Grant(&accounts[1], /*overdue=*/&accounts[0]);
  CheckLonePermits();
  EXPECT_EQ(ledger.lone_permits().size(), 1u);
}

TEST_F(LedgerTest, APermitTakesUpRoomAgainWhenItsSpareIsGivenUp) {
  Grant(&accounts[0]);
  Grant(&accounts[1], /*overdue=*/&accounts[0]);
  ledger.Release("left", now, &accounts[1]);
  CheckLonePermits();
  EXPECT_EQ(accounts[0].spare, nullptr);
  for (int i = 1; i < 4; ++i) {
    EXPECT_TRUE(ledger.HasRoom());
    Grant(&accounts[i]);
  }
  EXPECT_FALSE(ledger.HasRoom());
}

TEST_F(LedgerTest, ASpareStaysWhenThePermitBesideItIsGivenUp) {
  Grant(&accounts[0]);
  Grant(&accounts[1], /*overdue=*/&accounts[0]);
  ledger.Release("left", now, &accounts[0]);
  CheckLonePermits();
  EXPECT_EQ(accounts[1].spare_of, nullptr);
  ledger.Release("left", now, &accounts[1]);
  EXPECT_TRUE(ledger.lone_permits().empty());
}

TEST_F(LedgerTest, ALateGradientDoesNotCountWhoeverWasTheSpare) {
  for (int i = 0; i < 3; ++i) {
    Grant(&accounts[i]);
  }
  Grant(&accounts[3], /*overdue=*/&accounts[0]);
  for (int i : {1, 2, 3}) {
    EXPECT_EQ(Admit(&accounts[i]), GateAdmission::kAdmitted);
  }
  EXPECT_EQ(Admit(&accounts[0]), GateAdmission::kLate);
  EXPECT_EQ(ledger.in_flight(), 3);
  CheckLonePermits();
}

TEST_F(LedgerTest, TheLastOfSeveralGradientsHasHeldUpTheirRound) {
  const auto contribute = [&](GateAccount* account) {
    Grant(account);
    EXPECT_EQ(Admit(account), GateAdmission::kAdmitted);
    EXPECT_TRUE(
        ledger.Commit(ledger.generation(), ledger.round(), now, account));
  };
  for (int i = 0; i < 3; ++i) {
    now += seconds(2 + i);
    contribute(&accounts[i]);
  }
  ledger.SetTerms(/*quorum=*/1, /*total=*/4);
  ledger.Advance(1);
  now += seconds(9);
  contribute(&accounts[0]);
  EXPECT_EQ(accounts[0].stats.held_up, seconds(0));
  EXPECT_EQ(accounts[1].stats.held_up, seconds(0));
  EXPECT_EQ(accounts[2].stats.held_up, seconds(4));
}

TEST_F(LedgerTest, WhateverIsGrantedAndGivenUpEachPermitCountsOnce) {
  std::mt19937 random(1);
  const auto pick = [&random](int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n - 1)(random);
  };
  for (int call = 0; call < 20000 && !HasFailure(); ++call) {
    SCOPED_TRACE("call " + std::to_string(call));
    now += seconds(pick(3));
    GateAccount* account = &accounts[pick(kWorkers)];
    const bool holds = ledger.HoldsPermit(*account);
    const auto& lone = ledger.lone_permits().by_order();
    const int64_t what = pick(10);
    if (what < 5 && !holds && !ledger.IsInFlight(*account)) {
      account->last_step = seconds(pick(5));
      if (ledger.HasRoom()) {
        Grant(account);
      } else if (!lone.empty()) {
        Grant(account, std::next(lone.begin(), pick(lone.size()))->second);
      }
    } else if (what < 7 && holds) {
      Admit(account);
    } else if (what < 8) {
      ledger.Release("left", now, account);
    } else if (what < 9 && ledger.IsInFlight(*account)) {
      ledger.Commit(ledger.generation(), account->round, now, account);
    } else if (ledger.IsFull()) {
      ledger.Advance(call);
    }
    ledger.TakeEvents();
    CheckLonePermits();
  }
}

}  // namespace
}  // namespace tf_syncrep
