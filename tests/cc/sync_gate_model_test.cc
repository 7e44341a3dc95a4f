// SyncGate under random calls: after each of them the ledger balances, and
// those who still wait have to.

#include <algorithm>
#include <random>

#include "tests/cc/gate_fixture.h"

namespace tf_syncrep {
namespace {

constexpr int kSeeds = 3000;
constexpr int kCalls = 150;

class SyncGateModelTest : public GateTest {
 protected:
  // A worker's thread of control.
  struct Actor {
    GateWorker id;
    Kind kind = Kind::kNext;
    AcquireCall acquire;  // while it waits
    GateTerms terms;      // the terms that it asks for
    SyncGate::Time deadline = SyncGate::Time::max();  // if its wait is early
    bool takes_part = false;                          // in the present training
    SyncGate::Permit permit;  // with which it computes, or has computed
    bool holds = false;       // a permit of the gate, and not a pass
    bool admitted = false;
    bool known = false;  // to the gate, as this incarnation
    int64_t contributed_round = -1;
    int64_t contributed = 0;
  };

  void Begin(uint32_t seed) {
    random.seed(seed);
    SyncGateOptions options;
    options.quorum = 1 + Pick(4);
    options.total = 1 + Pick(4);
    options.strict = Pick(2) == 0;
    options.first_round = Pick(3);
    options.first_generation = 1 + Pick(3);
    Make(options);
    opened = next = Terms(options.quorum, options.total);
    strict = options.strict;
    generation = 0;
    closed = false;
    flushed_round = -1;
    passes = 0;
    actors.assign(1 + Pick(5), {});
    for (size_t i = 0; i < actors.size(); ++i) {
      actors[i].id = Worker(static_cast<int>(i));
    }
    zombies.clear();
    late_permits.clear();
    quorum_waits.clear();
    flush_waits.clear();
    drain_waits.clear();
    Look();
  }

  int64_t Pick(int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n - 1)(random);
  }

  void Look() { stats = gate->Stats(); }

  // --- Calls ---

  void Step() {
    Actor& actor = actors[Pick(actors.size())];
    const int64_t what = Pick(100);
    if (what < 62) {
      GoOn(&actor);
    } else if (what < 66) {
      Abort(actor.id, actor.permit);
      actor.holds = actor.holds && !IsPresent(actor.permit);
      actor.admitted = actor.admitted && !IsPresent(actor.permit);
    } else if (what < 68) {
      gate->Leave(actor.id);
      actor.holds = actor.admitted = actor.takes_part = false;
      actor.known = true;
    } else if (what < 71) {
      Kill(&actor);
    } else if (what < 73) {
      CancelSomething();
    } else if (what < 75) {
      BeginAcquire(&actor);  // whatever it was doing
    } else if (what < 77) {
      CallAsAZombie();
      ReturnAPermit();
    } else if (what < 84) {
      TryToUpdate();
    } else if (what < 86) {
      quorum_waits.push_back(WaitQuorum(Pick(2) * std::chrono::seconds(5)));
    } else if (what < 88) {
      flush_waits.push_back(Flush());
    } else if (what < 90) {
      drain_waits.push_back(Drain());
    } else if (what < 92) {
      next = Terms(1 + Pick(4), 1 + Pick(4));
      gate->Configure(next.quorum, next.total);
      MeetEarlyActors();
    } else if (what < 93) {
      AddPasses(Pick(4));
    } else if (what < 94) {
      End();
    } else if (what < 96 || generation == 0) {
      OpenAnew();
    } else {
      Pass(std::chrono::seconds(Pick(2) == 0 ? 1 + Pick(20) : 61));
    }
  }

  // Makes a worker's next call.
  void GoOn(Actor* actor) {
    if (actor->acquire != nullptr) {
      return;
    }
    if (actor->admitted) {
      const bool counts = Commit(actor->id, actor->permit);
      // It is void if, and only if, its round is not the present one.
      EXPECT_EQ(counts, IsPresent(actor->permit));
      actor->admitted = false;
      if (counts) {
        if (actor->contributed_round != stats.round) {
          actor->contributed_round = stats.round;
          actor->contributed = 0;
        }
        actor->contributed++;
      }
      return;
    }
    if (actor->permit.generation > 0 && Pick(8) > 0) {
      TryToAdmit(actor);
    } else {
      BeginAcquire(actor);
    }
  }

  void TryToAdmit(Actor* actor) {
    Admission admission = Admission::kStale;
    const GateStatus status =
        gate->Admit(actor->permit.generation, actor->id, actor->permit.round,
                    Pick(10) > 0, &admission);
    EXPECT_EQ(status.ok(), !closed);
    actor->takes_part &= !closed;
    actor->admitted = status.ok() && admission == Admission::kAdmitted;
    if (actor->admitted) {
      // It was computed with the weights that the update will change.
      EXPECT_TRUE(IsPresent(actor->permit));
      EXPECT_NE(flushed_round, stats.round);
    }
    if (status.ok()) {
      actor->holds = false;
    }
    if (!actor->admitted) {
      actor->permit = {};
    }
  }

  void BeginAcquire(Actor* actor) {
    if (actor->holds) {
      late_permits.push_back({actor->id, actor->permit});
    }
    actor->holds = actor->admitted = false;
    actor->kind = Pick(4) == 0 ? Kind::kFirst : Kind::kNext;
    actor->terms = Pick(6) == 0 ? Terms(1 + Pick(4), 1 + Pick(4)) : GateTerms();
    actor->acquire = Acquire(actor->id, actor->kind, actor->terms);
    actor->known = true;
    actor->deadline = SyncGate::Time::max();
    if (closed) {
      actor->deadline = now + kStartLease;
      EXPECT_EQ(actor->acquire->waits(),
                actor->kind == Kind::kFirst && !actor->takes_part);
    } else if (generation > 0) {
      Meet(actor);
    }
  }

  // Whether it waits for the gate to be opened.
  bool IsEarly(const Actor& actor) const {
    return actor.acquire != nullptr &&
           (generation == 0 || actor.deadline < SyncGate::Time::max());
  }

  // Called if the gate is open and the actor asks for a permit.
  void Meet(Actor* actor) {
    actor->takes_part = Agree(actor->terms);
    if (actor->takes_part) {
      actor->deadline = SyncGate::Time::max();
    } else {
      EXPECT_EQ(actor->acquire->waits(), actor->kind == Kind::kFirst);
      actor->deadline = std::min<SyncGate::Time>(actor->deadline, now + kLease);
    }
  }

  void MeetEarlyActors() {
    for (Actor& actor : actors) {
      if (!closed && generation > 0 && IsEarly(actor)) {
        Meet(&actor);
      }
    }
  }

  // A cancelled step returns a permit that its worker has lost, or a pass.
  void ReturnAPermit() {
    if (!late_permits.empty()) {
      const auto late = late_permits.begin() + Pick(late_permits.size());
      const auto [worker, permit] = *late;
      late_permits.erase(late);
      const bool is_pass = permit.number < 0 && permit.generation == generation;
      passes += is_pass ? 1 : 0;
      const auto num_waiting = [this] {
        return std::count_if(actors.begin(), actors.end(),
                             [](const Actor& actor) {
                               return actor.acquire && actor.acquire->waits();
                             });
      };
      const auto before = num_waiting();
      gate->ReturnPermit(worker, permit);
      EXPECT_TRUE(is_pass || num_waiting() == before);
    }
    for (Actor& actor : actors) {
      if (actor.holds && Pick(4) == 0) {
        gate->ReturnPermit(actor.id, actor.permit);
        actor.holds = false;
        return;
      }
    }
  }

  void End() {
    const int64_t whose = generation > 0 ? generation - Pick(2) : 0;
    const bool counts = whose == generation && !closed;
    Pick(2) == 0 ? gate->Close(whose)
                 : gate->Fail(whose, {GateStatus::kInvalidArgument, "no"});
    closed = closed || counts;
  }

  void Kill(Actor* actor) {
    if (actor->acquire != nullptr && Pick(2) == 0) {
      gate->Cancel(actor->acquire->id);
    }
    if (actor->known) {
      zombies.push_back(*actor);
    }
    const uint64_t incarnation = actor->id.incarnation + 1;
    actor->id.incarnation = incarnation;
    actor->takes_part = false;
    BeginAcquire(actor);
  }

  void CallAsAZombie() {
    if (zombies.empty()) {
      return;
    }
    const Actor& zombie = zombies[Pick(zombies.size())];
    Admission admission = Admission::kStale;
    gate->Admit(zombie.permit.generation, zombie.id, stats.round, true,
                &admission);
    EXPECT_EQ(admission, Admission::kStale);
    EXPECT_FALSE(Commit(zombie.id, zombie.permit));
    Abort(zombie.id, zombie.permit);
    gate->Leave(zombie.id);
    const auto acquire = Acquire(zombie.id);
    EXPECT_TRUE(acquire->ended_with(GateStatus::kAborted));
    const SyncGateStats after = gate->Stats();
    EXPECT_EQ(after.round, stats.round);
    EXPECT_EQ(after.live, stats.live);
    EXPECT_EQ(after.in_flight, stats.in_flight);
    EXPECT_EQ(after.pending, stats.pending);
  }

  void CancelSomething() {
    for (Actor& actor : actors) {
      if (actor.acquire != nullptr) {
        EXPECT_TRUE(gate->Cancel(actor.acquire->id));
        return;
      }
    }
    for (const auto* waits : {&flush_waits, &quorum_waits}) {
      if (!waits->empty()) {
        EXPECT_TRUE(gate->Cancel(waits->front()->id));
        return;
      }
    }
  }

  void TryToUpdate() {
    const auto quorum = WaitQuorum();
    if (quorum->waits()) {
      gate->Cancel(quorum->id);
    } else if (quorum->granted()) {
      EXPECT_EQ(quorum->value.num_gradients, stats.quorum);
      EXPECT_TRUE(Advance(quorum->value));
    } else {
      EXPECT_TRUE(closed || generation == 0);
    }
  }

  void AddPasses(int64_t n) {
    passes += n;
    gate->AddPasses(n);
  }

  void OpenAnew() {
    closed = false;
    passes = 0;
    const GateTerms terms =
        Pick(3) == 0 ? Terms(1 + Pick(4), 1 + Pick(4)) : GateTerms();
    generation = Open(Pick(10), terms);
    next = opened = terms.quorum > 0 ? terms : next;
    for (Actor& actor : actors) {
      if (actor.acquire != nullptr) {
        Meet(&actor);
      }
    }
  }

  // --- What must hold afterwards ---

  static GateTerms Terms(int64_t quorum, int64_t total) {
    GateTerms terms;
    terms.quorum = quorum;
    terms.total = total;
    return terms;
  }

  bool Agree(const GateTerms& terms) const {
    const auto is = [&terms](const GateTerms& other) {
      return terms.quorum == other.quorum && terms.total == other.total;
    };
    return terms.quorum == 0 || is(opened) || is(next);
  }

  bool IsPresent(const SyncGate::Permit& permit) const {
    return permit.generation == stats.generation &&
           permit.round == stats.round && permit.generation > 0;
  }

  bool IsLive(const Actor& actor) const { return StatsOf(actor.id).live; }

  void Check() {
    CheckAccounting();
    Look();
    for (Actor& actor : actors) {
      Follow(&actor);
    }
    for (const auto& flush : flush_waits) {
      if (flush->granted() && flush->value.num_gradients > 0) {
        flushed_round = flush->value.round;
        if (flushed_round == stats.round && Pick(2) == 0) {
          EXPECT_EQ(flush->value.num_gradients, stats.pending);
          EXPECT_TRUE(Advance(flush->value));
          Look();
          for (Actor& actor : actors) {
            Follow(&actor);
          }
        }
      }
    }
    for (auto* waits : {&quorum_waits, &flush_waits}) {
      Drop(waits);
    }
    Drop(&drain_waits);
    CheckUpdaterWaits();
    for (const Actor& actor : actors) {
      if (actor.acquire != nullptr) {
        CheckThatItHasToWait(actor);
      }
    }
  }

  // Notes what became of an actor's wait and permit.
  void Follow(Actor* actor) {
    if (actor->acquire != nullptr && !actor->acquire->waits()) {
      const bool granted = actor->acquire->granted();
      if (actor->acquire->ended_with(GateStatus::kInvalidArgument)) {
        EXPECT_TRUE(closed || !Agree(actor->terms));
      }
      const bool told = closed && !granted &&
                        !actor->acquire->ended_with(GateStatus::kCancelled) &&
                        !actor->acquire->ended_with(GateStatus::kAborted);
      actor->takes_part &= !told;
      const bool is_pass = actor->kind == Kind::kNext && passes > 0;
      passes -= granted && is_pass ? 1 : 0;
      actor->permit = granted ? actor->acquire->value : SyncGate::Permit{};
      actor->holds = granted && actor->permit.number > 0;
      EXPECT_TRUE(!actor->holds || (!is_pass && !closed));
      actor->acquire = nullptr;
    }
    actor->holds = actor->holds && IsPresent(actor->permit) && IsLive(*actor);
  }

  template <typename Waits>
  static void Drop(Waits* waits) {
    waits->erase(
        std::remove_if(waits->begin(), waits->end(),
                       [](const auto& wait) { return !wait->waits(); }),
        waits->end());
  }

  void CheckUpdaterWaits() {
    const bool full = stats.pending == stats.quorum;
    EXPECT_TRUE(quorum_waits.empty() || (!full && !closed));
    EXPECT_TRUE(flush_waits.empty() || (stats.in_flight > 0 && !closed));
    EXPECT_TRUE(drain_waits.empty() ||
                (!closed && (full || stats.in_flight > 0 ||
                             flushed_round == stats.round)));
  }

  void CheckThatItHasToWait(const Actor& actor) {
    EXPECT_LT(now, actor.deadline);
    if (closed) {
      EXPECT_TRUE(actor.kind == Kind::kFirst && !actor.takes_part);
      return;
    }
    if (generation == 0) {
      return;
    }
    if (IsEarly(actor)) {
      EXPECT_TRUE(actor.kind == Kind::kFirst && !Agree(actor.terms));
      return;
    }
    EXPECT_TRUE(actor.kind == Kind::kFirst || passes == 0);
    const int64_t permitted =
        std::count_if(actors.begin(), actors.end(),
                      [](const Actor& other) { return other.holds; });
    const int64_t admitted = stats.in_flight + stats.pending;
    const int64_t live = std::max<int64_t>(stats.live, 1);
    const int64_t share = (stats.quorum + live - 1) / live;
    const int64_t contributed =
        actor.contributed_round == stats.round ? actor.contributed : 0;
    EXPECT_TRUE(admitted >= stats.quorum ||
                permitted + admitted >= std::max(stats.quorum, stats.total) ||
                flushed_round == stats.round || !flush_waits.empty() ||
                (strict && contributed >= share))
        << "permitted " << permitted << ", admitted " << admitted << ", quorum "
        << stats.quorum << ", total " << stats.total << ", live " << live
        << ", contributed " << contributed;
  }

  // In any state, the workers that are there can fill a round.
  void ExpectARoundFills() {
    if (closed || generation == 0) {
      OpenAnew();
    }
    for (int tries = 0; tries < 20; ++tries) {
      for (Actor& actor : actors) {
        if (actor.acquire == nullptr && !actor.holds) {
          BeginAcquire(&actor);
        }
        Check();
        if (actor.acquire == nullptr && actor.holds &&
            Contribute(actor.id, actor.permit)) {
          Look();
          if (actor.contributed_round != stats.round) {
            actor.contributed_round = stats.round;
            actor.contributed = 0;
          }
          actor.contributed++;
        }
        actor.holds = false;
      }
      Look();
      const bool flushed = flushed_round == stats.round;
      const auto quorum = flushed ? Flush() : WaitQuorum();
      if (quorum->granted()) {
        EXPECT_TRUE(Advance(quorum->value));
        if (!flushed) {
          return;
        }
      }
      gate->Cancel(quorum->id);
      Pass(kStartLease);
    }
    ADD_FAILURE() << "the round does not fill";
  }

  std::mt19937 random;
  SyncGateStats stats;
  bool strict = true;
  bool closed = false;
  GateTerms opened;            // the terms of the last Open()
  GateTerms next;              // the terms of a Configure() since then
  int64_t flushed_round = -1;  // handed out by a flush, to be advanced
  int64_t passes = 0;
  std::vector<Actor> actors;
  std::vector<Actor> zombies;
  std::vector<std::pair<GateWorker, SyncGate::Permit>> late_permits;
  std::vector<QuorumCall> quorum_waits;
  std::vector<QuorumCall> flush_waits;
  std::vector<DrainCall> drain_waits;
};

TEST_F(SyncGateModelTest, RandomCallsKeepTheRules) {
  for (uint32_t seed = 1; seed <= kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Begin(seed);
    for (int call = 0; call < kCalls && !HasFailure(); ++call) {
      SCOPED_TRACE("call " + std::to_string(call));
      Step();
      Check();
    }
    if (!HasFailure()) {
      ExpectARoundFills();
    }
  }
}

}  // namespace
}  // namespace tf_syncrep
