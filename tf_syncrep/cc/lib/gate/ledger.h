// Rounds, permits and contributions: what was granted, and what counts.

#ifndef TF_SYNCREP_CC_LIB_GATE_LEDGER_H_
#define TF_SYNCREP_CC_LIB_GATE_LEDGER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tf_syncrep/cc/lib/gate/gate_types.h"

namespace tf_syncrep {

// What one worker holds and has given: its page in the ledger.
struct GateAccount {
  enum class Holds { kNothing, kPermit, kContribution };

  GateWorker worker;
  // About `round`. What belongs to a round before the present one no longer
  // counts.
  Holds holds = Holds::kNothing;
  int64_t round = 0;
  int64_t permit_number = 0;  // of kPermit
  int64_t permit_order = 0;   // of kPermit: its place among all grants
  GateTime permit_end{0};  // of kPermit: when the step ends, if like the last
  GateTime since{0};       // granted or admitted
  // If its permit is overdue: who holds the spare; if its permit is a spare:
  // whose it stands beside. Null if there is none, or none any more.
  GateAccount* spare = nullptr;
  GateAccount* spare_of = nullptr;
  // Contributions committed in `contributed_round`.
  int64_t contributed_round = -1;
  int64_t contributed_in_round = 0;
  GateTime last_step{0};  // from a grant to the admission; zero: none was seen
  GateWorkerStats stats;
};

// Those who hold a permit without a spare beside it. It may hold a thousand,
// and is asked at every call of a gate.
class LonePermits {
 public:
  void Add(GateAccount* holder);
  void Remove(GateAccount* holder);
  void Clear();

  bool empty() const { return by_order_.empty(); }
  size_t size() const { return by_order_.size(); }
  // By the order of their grants, the oldest first.
  const std::map<int64_t, GateAccount*>& by_order() const { return by_order_; }
  // The last `permit_end`. At least one is there.
  GateTime last_end() const { return *ends_.rbegin(); }

 private:
  std::map<int64_t, GateAccount*> by_order_;
  std::multiset<GateTime> ends_;
};

// The accounts of a gate: a state, and functions that change it and say what
// has happened. It knows nothing of locks, clocks, leases and waits. Accounts
// belong to the caller, and must outlive it.
class Ledger {
 public:
  explicit Ledger(const SyncGateOptions& options);

  int64_t generation() const { return generation_; }  // 0: never opened
  int64_t round() const { return round_; }
  int64_t step() const { return step_; }
  int64_t quorum() const { return quorum_; }
  int64_t total() const { return total_; }
  int64_t next_quorum() const { return next_quorum_; }
  int64_t next_total() const { return next_total_; }
  int64_t in_flight() const { return static_cast<int64_t>(flights_.size()); }
  int64_t committed() const { return committed_; }
  // The round admits no more.
  bool flushing() const { return flushing_; }
  // Of the present round.
  const LonePermits& lone_permits() const { return lone_permits_; }
  // Who has a contribution in flight, in the order of their admission.
  const std::vector<GateAccount*>& flights() const { return flights_; }

  bool IsFull() const { return flights_.empty() && committed_ == quorum_; }
  // Whether a gradient of the present round may still be admitted.
  bool Admits() const { return !flushing_ && NumAdmitted() < quorum_; }
  // Whether anybody may start computing in this round at all. A permit that has
  // a spare beside it takes up no room.
  bool HasRoom() const;
  bool IsPresent(int64_t generation, int64_t round) const {
    return generation_ > 0 && generation == generation_ && round == round_;
  }
  bool HoldsPermit(const GateAccount& account) const {
    return account.holds == GateAccount::Holds::kPermit &&
           account.round == round_;
  }
  bool IsInFlight(const GateAccount& account) const {
    return account.holds == GateAccount::Holds::kContribution &&
           account.round == round_;
  }
  int64_t ContributedInRound(const GateAccount& account) const {
    return account.contributed_round == round_ ? account.contributed_in_round
                                               : 0;
  }

  // From the next round on; before the first generation at once. Zero: as it
  // was.
  void SetTerms(int64_t quorum, int64_t total);

  // A new generation: what the last one left behind is void.
  void Open(int64_t step);

  // Permission to compute: a permit numbered `number`, beside that of `overdue`
  // if that is not null.
  GatePermit Grant(int64_t number, GateTime now, GateAccount* overdue,
                   GateAccount* account);

  // Permission without a permit.
  GatePermit Pass() const { return {generation_, round_, step_, 0}; }

  // A gradient of `round` has arrived. `may_give` is false for those who are
  // dead or have given their share. Its permit is used up. Null: from a
  // stranger.
  GateAdmission Admit(int64_t generation, int64_t round, bool may_give,
                      bool fit, GateTime now, GateAccount* account);

  // All of it was pushed. False if it counts for nothing.
  bool Commit(int64_t generation, int64_t round, GateTime now,
              GateAccount* account);

  // Gives up a permit or, with the whole round, a contribution in flight.
  // `why` completes "... is void: <device> ".
  void Release(const std::string& why, GateTime now, GateAccount* account);

  // Its lease has ended; to be called before Release(). `what` it did.
  void Expire(GateTime silence, const std::string& what, GateAccount* account);

  // The round admits no more; the round goes on.
  void SetFlushing(bool flushing) {
    flushing_ = flushing;
    flush_given_up_ = false;
  }
  // Whoever was to apply the round, if it was flushed, was told to stop.
  void GiveFlushUp() { flush_given_up_ = flushing_; }
  // Another updater is there: a flushed round that was given up is void, since
  // nobody knows whether it was applied.
  void EndFlushGivenUp();

  // The round was applied: the next one begins, at `step`.
  void Advance(int64_t step);

  // Closed or failed.
  void End(const GateStatus& status);

  // The sums, and the present state; without workers.
  SyncGateStats Stats() const;

  // What has happened since the last call.
  std::vector<GateEvent> TakeEvents();

 private:
  int64_t NumAdmitted() const { return in_flight() + committed_; }
  GateAdmission Judge(bool may_give, bool fit) const;
  void StartRound();
  void VoidRound(const std::string& why, GateAccount* cause);
  void DropPermit(GateAccount* account);
  void Note(GateEvent::Kind kind, int64_t value, const GateAccount* account,
            const std::string& message = "");

  const int64_t first_generation_;

  int64_t quorum_;
  int64_t total_;
  int64_t next_quorum_;  // take the place of the two at the next round
  int64_t next_total_;

  int64_t generation_ = 0;
  int64_t round_;
  int64_t step_ = 0;

  // Of the present round.
  LonePermits lone_permits_;
  std::vector<GateAccount*> flights_;
  std::vector<GateAccount*> contributors_;  // those with commits
  int64_t committed_ = 0;
  GateTime last_commit_{0};
  bool flushing_ = false;
  bool flush_given_up_ = false;
  int64_t num_grants_ = 0;  // in the ledger's life

  SyncGateStats sums_;  // its sums; the rest is filled in by Stats()
  std::vector<GateEvent> events_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_LEDGER_H_
