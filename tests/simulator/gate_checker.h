// The rules of the gate, checked on what it was asked and what it answered.

#ifndef TESTS_SIMULATOR_GATE_CHECKER_H_
#define TESTS_SIMULATOR_GATE_CHECKER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "tests/simulator/gate_record.h"
#include "tf_syncrep/cc/lib/gate/gate_types.h"

namespace tf_syncrep::simulator {

// Follows one gate by its records, in their order, and says which rule is
// broken. It knows nothing of leases: records say when one has ended.
//
// EventChecker is another one on purpose. It reads what the gate itself tells,
// which is all that there is of a real cluster; this one does not, and so finds
// a gate that does what is wrong and tells what is right.
//
//   - Generations and rounds only count up; a round ends by an update or a
//   void.
//   - Permits are for the present round, while it needs gradients, and each has
//     a number of its own. No more are given than are needed, but for spares,
//     and of these none in strict mode.
//   - No more than the quorum is admitted. What is admitted is of the present
//     round, by a live incarnation, and whoever has a permit and comes in time
//     is admitted.
//   - A commit counts once, and just then if its contribution was admitted in
//     the present round and not given up.
//   - A round is void just then if what was admitted to it was given up.
//   - A quorum is the number of committed gradients; only such a round
//   advances.
//   - Nobody waits for a permit without a reason.
//   - The counters are what they should be.
class GateChecker {
 public:
  void See(const GateRecord& record);

  // To be called after the effects of a call: counters are as they should be,
  // and whoever waits now must have to. `gathers` says that a worker may be
  // limited to its share.
  void CheckEffects(const SyncGateStats& stats, bool gathers);

  // Whether this worker waits for a permit of an open gate.
  bool WaitsForPermit(const std::string& worker) const;

  // The first rule that was broken; empty if there is none.
  const std::string& error() const { return error_; }

  int64_t updates() const { return updates_; }
  int64_t applied() const { return sum_applied_; }

 private:
  struct Worker {
    uint64_t incarnation = 0;
    std::set<uint64_t> dead;
    int64_t permit = 0;  // its number
    bool is_spare = false;
    bool in_flight = false;
    int64_t contributed = 0;  // in the present round
    int64_t wait = 0;         // its acquire, or 0 if it does not wait
    bool is_first = false;
    int64_t quorum = 0;  // of its terms
    int64_t total = 0;
  };

  bool Expect(bool holds, const char* rule);
  bool IsPresent(const GateRecord& record) const;
  bool IsFlushing() const { return flushes_ > 0 || is_flushed_; }
  int64_t NumAdmitted() const { return in_flight_ + committed_; }
  Worker* Find(const GateRecord& record);
  void Release(Worker* worker);
  void EndRound(int64_t next);
  void SeeAsk(const GateRecord& record);
  void SeeGrant(const GateRecord& record);
  void SeeAdmit(const GateRecord& record);
  void SeeCommit(const GateRecord& record);
  void SeeEndOfRound(const GateRecord& record);
  void SeeOpen(const GateRecord& record);
  bool HasToWait(const Worker& worker) const;
  bool TermsAgree(const Worker& worker) const;

  std::string error_;
  const GateRecord* seen_ = nullptr;  // while See() runs

  bool is_made_ = false;
  bool is_deleted_ = false;
  bool strict_ = false;
  bool gathers_ = false;  // a worker may be limited to its share
  bool is_open_ = false;
  bool is_ended_ = false;
  int64_t generation_ = 0;
  int64_t round_ = 0;
  int64_t step_ = 0;
  int64_t quorum_ = 0;
  int64_t total_ = 0;
  int64_t next_quorum_ = 0;
  int64_t next_total_ = 0;
  int64_t opened_quorum_ = 0;
  int64_t opened_total_ = 0;
  int64_t live_ = -1;

  std::map<std::string, Worker> workers_;
  std::set<int64_t> permits_given_;
  int64_t permitted_ = 0;
  int64_t spares_ = 0;  // of the permits
  int64_t in_flight_ = 0;
  int64_t committed_ = 0;
  int64_t passes_ = 0;
  int64_t flushes_ = 0;
  bool is_flushed_ = false;
  bool is_flush_given_up_ = false;
  // The worker whose updater has failed, so that it does not wait; empty if
  // none.
  std::string failed_worker_;
  uint64_t failed_incarnation_ = 0;
  bool must_void_ = false;  // an admitted gradient was given up

  int64_t sum_admitted_ = 0;
  int64_t sum_committed_ = 0;
  int64_t sum_applied_ = 0;
  int64_t sum_voided_ = 0;
  int64_t sum_aborted_ = 0;
  int64_t updates_ = 0;
  int64_t voids_ = 0;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_GATE_CHECKER_H_
