// What must hold between the counters of a SyncGate, at any time.

#ifndef TESTS_CC_GATE_ACCOUNTING_H_
#define TESTS_CC_GATE_ACCOUNTING_H_

#include <cstdint>
#include <string>

#include "tf_syncrep/cc/lib/gate/sync_gate.h"

namespace tf_syncrep {

// Returns the identities that do not hold, in words; empty if all hold.
// `num_updates` is the number of calls of Advance() that succeeded, and
// `num_applied` the sum of their numbers of gradients, as the updater has
// counted them.
inline std::string BrokenIdentities(const SyncGateStats& stats,
                                    int64_t num_updates, int64_t num_applied) {
  GateWorkerStats sum;
  for (const GateWorkerStats& worker : stats.workers) {
    sum.contributed += worker.contributed;
    sum.late += worker.late;
    sum.stale += worker.stale;
    sum.rejected += worker.rejected;
    sum.voided += worker.voided;
    sum.expired += worker.expired;
  }
  std::string broken;
  const auto check = [&broken](bool holds, const char* identity) {
    broken += holds ? "" : std::string(identity) + "\n";
  };
  check(stats.admitted == stats.committed + stats.aborted + stats.in_flight,
        "admitted = committed + aborted + in flight");
  check(stats.committed == stats.applied + stats.voided + stats.pending,
        "committed = applied + voided + pending");
  check(stats.rounds == stats.updates + stats.voids,
        "rounds = updates + voids");
  check(stats.updates == num_updates, "updates = successful advances");
  check(stats.applied == num_applied, "applied = sum over the updates");
  check(stats.in_flight >= 0 && stats.pending >= 0, "counts are not negative");
  check(stats.in_flight + stats.pending <= stats.quorum,
        "no more than the quorum is admitted");
  check(stats.committed == sum.contributed, "committed = sum over workers");
  check(stats.voided == sum.voided, "voided = sum over workers");
  check(stats.late == sum.late, "late = sum over workers");
  check(stats.rejected == sum.rejected, "rejected = sum over workers");
  check(stats.expired == sum.expired, "expired = sum over workers");
  // Gradients of workers that the gate does not know are stale, too.
  check(stats.stale >= sum.stale, "stale >= sum over workers");
  return broken;
}

}  // namespace tf_syncrep

#endif  // TESTS_CC_GATE_ACCOUNTING_H_
