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

// What one worker holds and has given.
struct GateAccount {
  enum class Holds { kNothing, kPermit, kContribution };

  GateWorker worker;
  // What the worker holds of `round`. If that is not the present round, it no
  // longer counts.
  Holds holds = Holds::kNothing;
  int64_t round = 0;
  int64_t permit_number = 0;  // of kPermit
  int64_t permit_order = 0;   // of kPermit: its place among all grants
  // of kPermit: when the step ends if it takes as long as the last one
  GateTime permit_end{0};
  GateTime since{0};  // when it was granted or admitted
  // `spare` is the holder of the spare beside this overdue permit. `spare_of`
  // is the holder of the overdue permit beside which this spare stands. Null if
  // there is none, or none any more.
  GateAccount* spare = nullptr;
  GateAccount* spare_of = nullptr;
  // Contributions committed in `contributed_round`.
  int64_t contributed_round = -1;
  int64_t contributed_in_round = 0;
  // from a grant to the admission; zero before the first one
  GateTime last_step{0};
  GateWorkerStats stats;
};

// The holders of permits that have no spare beside them. There may be a
// thousand, and every call of a gate asks about them.
class LonePermits {
 public:
  void Add(GateAccount* holder);
  void Remove(GateAccount* holder);
  void Clear();

  bool empty() const { return by_order_.empty(); }
  size_t size() const { return by_order_.size(); }
  // In the order of their grants, the oldest first.
  const std::map<int64_t, GateAccount*>& by_order() const { return by_order_; }
  // The last `permit_end`. There must be at least one holder.
  GateTime last_end() const { return *ends_.rbegin(); }

 private:
  std::map<int64_t, GateAccount*> by_order_;
  std::multiset<GateTime> ends_;
};

// The accounts of a gate: a state, functions that change it, and events that
// tell what has happened. The ledger knows nothing of locks, clocks, leases and
// waits. Accounts belong to the caller, and must outlive the ledger.
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
  // Whether the round admits no more gradients because the updater flushes it.
  bool flushing() const { return flushing_; }
  // The permits of the present round that have no spare.
  const LonePermits& lone_permits() const { return lone_permits_; }
  // The accounts with a contribution in flight, in the order of their
  // admission.
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

  // Sets the terms, from the next round on, or at once before the first
  // generation. Zero leaves a value as it was.
  void SetTerms(int64_t quorum, int64_t total);

  // Starts a generation; what the last one left behind is void.
  void Open(int64_t step);

  // Grants a permit with the number `number`. If `overdue` is not null, it is a
  // spare beside the permit of `overdue`.
  GatePermit Grant(int64_t number, GateTime now, GateAccount* overdue,
                   GateAccount* account);

  // Leave to go on without a permit.
  GatePermit Pass() const { return {generation_, round_, step_, 0}; }

  // Decides on a gradient of `round` that has arrived, and uses up the permit
  // of its worker. `may_give` is false for a worker that is dead or has given
  // its share. `account` is null for a worker that the gate does not know.
  GateAdmission Admit(int64_t generation, int64_t round, bool may_give,
                      bool is_fit, GateTime now, GateAccount* account);

  // Notes that the whole contribution was pushed. False if it does not count.
  bool Commit(int64_t generation, int64_t round, GateTime now,
              GateAccount* account);

  // Gives up a permit or, with the whole round, a contribution in flight.
  // `why` completes "... is void: <device> ".
  void Release(const std::string& why, GateTime now, GateAccount* account);

  // Notes that the worker's lease has ended. Must be called before Release().
  // `what` says what the worker was doing.
  void Expire(GateTime silence, const std::string& what, GateAccount* account);

  // While flushing, the round goes on but admits no more gradients.
  void SetFlushing(bool flushing) {
    flushing_ = flushing;
    flush_given_up_ = false;
  }
  // Notes that the updater of a flushed round, if there is one, was told to
  // stop.
  void GiveFlushUp() { flush_given_up_ = flushing_; }
  // To be called when another updater has come: a flushed round that was given
  // up is void, since nobody knows whether it was applied.
  void EndFlushGivenUp();

  // Ends the round, which was applied; the next one begins, at `step`.
  void Advance(int64_t step);

  // Notes that the training was closed or has failed.
  void End(const GateStatus& status);

  // The sums and the present state, without the statistics of workers.
  SyncGateStats Stats() const;

  // Returns the events since the last call.
  std::vector<GateEvent> TakeEvents();

 private:
  int64_t NumAdmitted() const { return in_flight() + committed_; }
  GateAdmission Judge(bool may_give, bool is_fit) const;
  void StartRound();
  void VoidRound(const std::string& why, GateAccount* cause);
  void DropPermit(GateAccount* account);
  void Note(GateEvent::Kind kind, int64_t value, const GateAccount* account,
            const std::string& message = "");

  const int64_t first_generation_;

  int64_t quorum_;
  int64_t total_;
  // take the place of quorum_ and total_ at the next round
  int64_t next_quorum_;
  int64_t next_total_;

  int64_t generation_ = 0;
  int64_t round_;
  int64_t step_ = 0;

  // The state of the present round.
  LonePermits lone_permits_;
  std::vector<GateAccount*> flights_;
  std::vector<GateAccount*> contributors_;  // workers with committed gradients
  int64_t committed_ = 0;
  GateTime last_commit_{0};
  bool flushing_ = false;
  bool flush_given_up_ = false;
  int64_t num_grants_ = 0;  // in the ledger's life

  SyncGateStats sums_;  // only its sums; Stats() fills in the rest
  std::vector<GateEvent> events_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_LEDGER_H_
