// The real gate on a parameter server, followed by a checker.

#ifndef TESTS_SIMULATOR_WATCHED_GATE_H_
#define TESTS_SIMULATOR_WATCHED_GATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulator/call.h"
#include "tests/simulator/event_checker.h"
#include "tests/simulator/gate_checker.h"
#include "tests/simulator/silence.h"
#include "tests/simulator/twin.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"

namespace tf_syncrep::simulator {

class WatchedGate {
 public:
  using Time = SyncGate::Time;
  using Log = std::function<void(const GateRecord&)>;

  // `log`, if there is one, gets each record.
  WatchedGate(const SyncGateOptions& options, SyncGate::Clock clock, Twin* twin,
              Log log);

  // Executes the call, which comes back now or later.
  void Handle(Call* call);

  // Cancels a step that waits, or whose wait has just been granted, as
  // TensorFlow's ops do.
  void Cancel(Call* call);

  Time Poll();
  // Deletes the gate. Calls up to the number `last_call` have found it already,
  // and still arrive.
  void Delete(int64_t last_call);
  bool is_deleted() const { return is_deleted_; }

  // Whether the gate has seen an acquire of this life of the caller.
  bool HasHeardOf(const Call& call) const;
  SyncGateStats Stats() const { return gate_.Stats(); }
  const std::string& error() const { return error_; }

 private:
  SyncGateOptions WithObserver(SyncGateOptions options);
  void HandleUpdaters(Call* call);
  SyncGate::QuorumCallback EndQuorum(Call* call);
  // Tells the checker of changes since the last call.
  void Look();
  void After();
  void LookForExpired();
  void See(GateRecord record);
  GateRecord RecordOf(GateRecord::Kind kind, const Call& call) const;
  Silence& SilenceOf(const Call& call);
  void HearOfUpdater(bool is_ready);
  void Expect(bool holds, const std::string& rule);
  void LookForLostUpdater();
  // Notes that the gate has ended the training because of a lost updater, or
  // must have.
  void LoseUpdater();
  void CheckStatus(const GateStatus& status);

  const SyncGateOptions options_;
  const SyncGate::Clock clock_;
  Twin* const twin_;
  const Log log_;
  std::string error_;
  GateChecker checker_;
  EventChecker event_checker_;
  bool is_deleted_ = false;
  int64_t last_call_ = 0;
  bool is_polling_ = false;
  SyncGateStats last_;
  // The events since the last Look(), and all events.
  std::vector<GateEvent> events_;
  std::set<int64_t> spares_;
  SyncGate gate_;
  // Tells the outcome of a call, before its effects.
  std::function<void(const SyncGateStats&)> tell_;
  std::map<std::string, Silence> silences_;  // by worker
  std::set<std::pair<std::string, uint64_t>> have_asked_;
  Time opened_at_{0};
  Time updater_heard_{0};
  bool updater_is_ready_ = false;
  bool updater_is_lost_ = false;  // of this generation
  int num_updater_waits_ = 0;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_WATCHED_GATE_H_
