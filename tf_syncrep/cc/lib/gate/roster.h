// Who takes part, who is alive, and how long a worker may be silent.

#ifndef TF_SYNCREP_CC_LIB_GATE_ROSTER_H_
#define TF_SYNCREP_CC_LIB_GATE_ROSTER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tf_syncrep/cc/lib/gate/gate_types.h"
#include "tf_syncrep/cc/lib/gate/ledger.h"

namespace tf_syncrep {

// One worker, through all of its lives.
struct GateMember {
  enum class Presence {
    kExpected,  // heard of in a training that is over
    kLive,
    kExpired,
    kLeft,
  };

  GateAccount account;
  std::vector<uint64_t> dead_incarnations;
  Presence presence = Presence::kExpected;
  // What it is doing, and since when, whether or not its permit still holds.
  GatePhase phase = GatePhase::kIdle;
  GateTime phase_since{0};
  GateTime last_seen{0};
  // Has acquired in the present training, has not left it, and has not been
  // told that it is over.
  bool takes_part = false;
  int64_t waiting = 0;   // its wait in Acquire()
  bool is_idle = false;  // is counted in Roster::idle_steps()
  GatePermit permit;     // what it was last given leave by

  // What is known of its silences: see Roster.
  bool started = false;    // has been through a first step
  GateTime first_step{0};  // of this life, until its second one is over
  GateTime longest_silence{0};
  int64_t timed_in = 0;  // the generation in which its first step was timed

  bool is_live() const { return presence == Presence::kLive; }
};

// A worker is taken for dead when it has been silent for its lease: `lease`,
// or twice the longest silence, in a step or in its pushes, that it was ever
// seen to come back from. So one that needs longer than a lease for its steps
// or pushes is given up at most once. Here the first step, in which functions
// may be compiled, counts until the second is over. No silence counts for more
// than `start` (or a longer `lease`): others would wait twice the hour for a
// worker that was cut off for an hour, came back and died.
//
// How long a first step itself may take is learnt from the others: `start`,
// until as many workers have been through theirs in this generation as are in
// it now. Then it is four times the longest of those, within `lease` and
// `start`. Otherwise a worker that dies in its first step would hold up a round
// for `start`. Workers never heard of are expected for `start` from the opening
// on.
class Roster {
 public:
  explicit Roster(const SyncGateOptions& options);

  GateTime lease() const { return lease_; }
  GateTime start_lease() const { return start_lease_; }
  // Zero: as it was.
  void SetLeases(GateTime lease, GateTime start_lease);

  // Null if it is not known, or known as another incarnation.
  GateMember* Find(const GateWorker& worker);
  // The same, for a call that shows that it lives.
  GateMember* FindAndRenew(const GateWorker& worker, GateTime now);
  // The worker; null if this incarnation of it is dead. `replaced` says whether
  // it was another incarnation until now: that one is dead now, and the account
  // still has its name, so that the caller can give up what it held and rename
  // it.
  GateMember* Enter(const GateWorker& worker, bool* replaced);
  // The worker if it is known as this incarnation; if it was never heard of, a
  // new entry.
  GateMember* FindOrAdd(const GateWorker& worker, bool* is_new);

  void SetPresence(GateMember::Presence presence, GateMember* member);
  static void SetPhase(GatePhase phase, GateTime now, GateMember* member);
  // It waits in Acquire(); 0: no longer.
  void SetWaiting(int64_t wait, GateMember* member);

  // Its gradient has arrived. One of another generation says nothing about how
  // long first steps take in this one.
  void EndStep(int64_t generation, bool is_of_it, GateTime now,
               GateMember* member);
  // It is heard of after its pushes, or when it begins anew.
  static void EndSilence(GateTime now, GateMember* member);

  // Says what it has been doing, for people: "been computing for 3.1 s".
  static std::string Activity(const GateMember& member, GateTime now);

  // Workers that live or are still expected. `total` are to take part.
  int64_t NumLive(int64_t total) const;

  // Whether somebody who was never heard of is entitled to a share of a round.
  bool Gathers(int64_t total, GateTime now) const;

  // Those whose lease has ended; they count as dead from now on.
  std::vector<GateMember*> Expire(int64_t total, bool is_open, GateTime now);
  // When the next lease ends.
  GateTime NextLeaseEnd(int64_t total, bool is_open, GateTime now) const;

  // The last steps of those that wait and have been through a first step; zero
  // where that was the last.
  const std::multiset<GateTime>& idle_steps() const { return idle_steps_; }

  // Forgets who takes part.
  void StartTraining();
  void StartGeneration(GateTime now);

  const std::map<std::string, GateMember>& members() const { return members_; }

 private:
  // To be called when it waits, or has started, or no longer.
  void CountIdle(GateMember* member);
  GateTime FirstStepLease(int64_t total) const;
  GateTime LeaseEnd(const GateMember& member, GateTime first_step_lease) const;

  const bool strict_;
  const bool gathers_;
  GateTime lease_;
  GateTime start_lease_;

  // Members are never removed: others point to them.
  std::map<std::string, GateMember> members_;
  int64_t num_heard_of_ = 0;  // those that are not merely expected
  int64_t num_live_ = 0;      // those of them that live
  std::multiset<GateTime> idle_steps_;

  // Of this generation.
  GateTime opened_at_{0};
  bool unheard_of_expired_ = false;
  int64_t num_first_steps_ = 0;  // workers that were through theirs
  GateTime longest_first_step_{0};
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_ROSTER_H_
