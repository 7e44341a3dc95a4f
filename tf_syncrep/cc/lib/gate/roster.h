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

// One worker, through all of its incarnations.
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
  // What the worker is doing, and since when, even if its permit no longer
  // counts.
  GatePhase phase = GatePhase::kIdle;
  GateTime phase_since{0};
  GateTime last_seen{0};
  // Whether the worker has acquired in the present training, has not left it,
  // and has not been told that it is over.
  bool takes_part = false;
  int64_t waiting = 0;   // the number of its wait in Acquire(), or 0
  bool is_idle = false;  // whether Roster::idle_steps() counts it
  GatePermit permit;     // the last permit or pass that it was given

  // What is known of the worker's silences: see Roster.
  bool started = false;  // whether it has been through a first step
  // in this incarnation; zero once the second step is over
  GateTime first_step{0};
  GateTime longest_silence{0};
  int64_t timed_in = 0;  // the generation in which its first step was timed

  bool is_live() const { return presence == Presence::kLive; }
};

// A worker is taken for dead when it has been silent for its lease. This is
// `lease`, or twice the longest silence, in a step or in its pushes, from which
// it was ever seen to come back. So a worker that needs longer than a lease for
// its steps or pushes is given up at most once. The first step, in which
// functions may be compiled, counts as such a silence only until the second
// step is over. No silence counts for more than `start` (or a longer `lease`):
// otherwise, if a worker was cut off for an hour, came back and then died,
// others would wait for it for two hours.
//
// How long a first step may take is learnt from other workers. It is `start`
// until as many workers have been through their first steps in this generation
// as are in them now. Then it is four times the longest of those steps, but no
// less than `lease` and no more than `start`. Otherwise a worker that dies in
// its first step would hold up a round for `start`. Workers that were never
// heard of are expected for `start` from the opening on.
class Roster {
 public:
  explicit Roster(const SyncGateOptions& options);

  GateTime lease() const { return lease_; }
  GateTime start_lease() const { return start_lease_; }
  // Zero leaves a value as it was.
  void SetLeases(GateTime lease, GateTime start_lease);

  // Null if the worker is not known, or is known as another incarnation.
  GateMember* Find(const GateWorker& worker);
  // The same, for a call that shows that the worker lives.
  GateMember* FindAndRenew(const GateWorker& worker, GateTime now);
  // Returns the worker, or null if this incarnation of it is dead. `replaced`
  // says whether another incarnation has lived until now. That one is dead from
  // now on, but the account still has its name, so that the caller can give up
  // what it held and then rename the account.
  GateMember* Enter(const GateWorker& worker, bool* replaced);
  // Returns the worker if it is known as this incarnation, or a new member if
  // it was never heard of.
  GateMember* FindOrAdd(const GateWorker& worker, bool* is_new);

  void SetPresence(GateMember::Presence presence, GateMember* member);
  static void SetPhase(GatePhase phase, GateTime now, GateMember* member);
  // Notes the number of the worker's wait in Acquire(), or 0 at its end.
  void SetWaiting(int64_t wait, GateMember* member);

  // Notes that the worker's gradient has arrived. A gradient of another
  // generation tells nothing about the length of first steps in this one.
  void EndStep(int64_t generation, bool is_of_it, GateTime now,
               GateMember* member);
  // To be called when the worker is heard of after its pushes, or begins anew.
  static void EndSilence(GateTime now, GateMember* member);

  // Says what the worker has been doing, for people to read: "been computing
  // for 3.1 s".
  static std::string Activity(const GateMember& member, GateTime now);

  // How many workers live or are still expected, if `total` are to take part.
  int64_t NumLive(int64_t total) const;

  // Whether a worker that was never heard of is entitled to a share of a round.
  bool Gathers(int64_t total, GateTime now) const;

  // Returns the workers whose lease has ended; they count as dead from now on.
  std::vector<GateMember*> Expire(int64_t total, bool is_open, GateTime now);
  // When the next lease ends.
  GateTime NextLeaseEnd(int64_t total, bool is_open, GateTime now) const;

  // The last steps of the workers that wait and have been through a first step.
  // A step is zero if the first was the only one.
  const std::multiset<GateTime>& idle_steps() const { return idle_steps_; }

  // Forgets which workers take part.
  void StartTraining();
  void StartGeneration(GateTime now);

  const std::map<std::string, GateMember>& members() const { return members_; }

 private:
  // To be called whenever `waiting` or `started` has changed.
  void CountIdle(GateMember* member);
  GateTime FirstStepLease(int64_t total) const;
  GateTime LeaseEnd(const GateMember& member, GateTime first_step_lease) const;

  const bool strict_;
  const bool gathers_;
  GateTime lease_;
  GateTime start_lease_;

  // Members are never removed, since others point to them.
  std::map<std::string, GateMember> members_;
  int64_t num_heard_of_ = 0;  // members that are not merely expected
  int64_t num_live_ = 0;      // of these, members that live
  std::multiset<GateTime> idle_steps_;

  // Facts of this generation.
  GateTime opened_at_{0};
  bool unheard_of_expired_ = false;
  int64_t num_first_steps_ = 0;  // workers that were through their first step
  GateTime longest_first_step_{0};
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_ROSTER_H_
