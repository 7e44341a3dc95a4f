// A SyncGate on a clock that the test moves, with calls that note how they end.

#ifndef TESTS_CC_GATE_FIXTURE_H_
#define TESTS_CC_GATE_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/gate/gate_accounting.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"

namespace tf_syncrep {

// A wait and how it ended. `Value` is the type of its result.
template <typename Value>
struct GateCall {
  SyncGate::WaitId id = 0;
  int num_ends = 0;
  GateStatus status;
  Value value;

  bool waits() const { return num_ends == 0; }
  bool granted() const { return num_ends == 1 && status.ok(); }
  bool ended_with(int code) const {
    return num_ends == 1 && status.code == code;
  }
};

class GateTest : public ::testing::Test {
 protected:
  using Kind = SyncGate::AcquireKind;
  using Admission = SyncGate::Admission;
  using AcquireCall = std::shared_ptr<GateCall<SyncGate::Permit>>;
  using QuorumCall = std::shared_ptr<GateCall<SyncGate::Quorum>>;
  using DrainCall = std::shared_ptr<GateCall<int>>;

  static constexpr auto kLease = std::chrono::seconds(60);
  static constexpr auto kStartLease = std::chrono::seconds(600);
  static constexpr auto kSecond = std::chrono::seconds(1);

  static SyncGateOptions Options(int64_t quorum, int64_t total,
                                 bool strict = true) {
    SyncGateOptions options;
    options.quorum = quorum;
    options.total = total;
    options.strict = strict;
    return options;
  }

  // Makes a gate that was never opened.
  void Make(SyncGateOptions options) {
    Finish();
    gate = std::make_unique<SyncGate>(options, [this] { return now; });
  }

  // Makes a gate that is open, at step 0.
  void Start(int64_t quorum, int64_t total, bool strict = true) {
    Make(Options(quorum, total, strict));
    generation = Open(0);
  }

  int64_t Open(int64_t step, const GateTerms& terms = {}) {
    return gate->Open(step, terms);
  }

  void Close() { gate->Close(SyncGate::kAnyGeneration); }

  void Fail(const GateStatus& error) {
    gate->Fail(SyncGate::kAnyGeneration, error);
  }

  static GateWorker Worker(int task, uint64_t incarnation = 1) {
    return {"/job:worker/replica:0/task:" + std::to_string(task), incarnation};
  }

  AcquireCall Acquire(const GateWorker& worker, Kind kind = Kind::kNext,
                      const GateTerms& terms = {}) {
    auto call = NewCall(&acquires_);
    call->id = gate->Acquire(
        worker, kind, terms,
        [call](const GateStatus& status, const SyncGate::Permit& permit) {
          End(*call, status, permit);
        });
    return call;
  }

  Admission Admit(const GateWorker& worker, const SyncGate::Permit& permit,
                  bool is_fit = true) {
    Admission admission = Admission::kStale;
    const GateStatus status = gate->Admit(permit.generation, worker,
                                          permit.round, is_fit, &admission);
    EXPECT_TRUE(status.ok()) << status.message;
    return admission;
  }

  bool Commit(const GateWorker& worker, const SyncGate::Permit& permit) {
    return gate->Commit(permit.generation, worker, permit.round);
  }

  void Abort(const GateWorker& worker, const SyncGate::Permit& permit) {
    gate->Abort(permit.generation, worker, permit.round);
  }

  // Does all that a worker does in a round before it commits. Its permit must
  // be granted at once.
  SyncGate::Permit BeginPush(const GateWorker& worker) {
    const AcquireCall call = Acquire(worker);
    EXPECT_TRUE(call->granted());
    EXPECT_EQ(Admit(worker, call->value), Admission::kAdmitted);
    return call->value;
  }

  // Does all that a worker does in a round after its wait.
  bool Contribute(const GateWorker& worker, const SyncGate::Permit& permit) {
    return Admit(worker, permit) == Admission::kAdmitted &&
           Commit(worker, permit);
  }

  // The same with the acquire.
  SyncGate::Permit Give(const GateWorker& worker) {
    const SyncGate::Permit permit = BeginPush(worker);
    EXPECT_TRUE(Commit(worker, permit));
    return permit;
  }

  QuorumCall WaitQuorum(SyncGate::Time timeout = SyncGate::Time(0)) {
    auto call = NewCall(&quorums_);
    call->id = gate->WaitQuorum(generation, timeout, Ender(call));
    return call;
  }

  QuorumCall Flush() {
    auto call = NewCall(&quorums_);
    call->id = gate->Flush(generation, Ender(call));
    return call;
  }

  DrainCall Drain() {
    auto call = NewCall(&drains_);
    call->id = gate->Drain(generation, [call](const GateStatus& status) {
      End(*call, status, 0);
    });
    return call;
  }

  // Ends a round as the updater does.
  bool Advance(const SyncGate::Quorum& quorum) {
    bool advanced = false;
    const int64_t step = gate->Stats().step + 1;
    const GateStatus status =
        gate->Advance(generation, quorum.round, step, &advanced);
    EXPECT_TRUE(status.ok()) << status.message;
    if (advanced) {
      num_updates_++;
      num_applied_ += quorum.num_gradients;
    }
    return advanced;
  }

  // Waits for a quorum, which must be complete, and applies it.
  int64_t Update() {
    const QuorumCall call = WaitQuorum();
    EXPECT_TRUE(call->granted());
    EXPECT_TRUE(Advance(call->value));
    return call->value.num_gradients;
  }

  void Pass(SyncGate::Time time) {
    now += time;
    gate->Poll();
  }

  // Passes the time, and expects the wait to end at its last second.
  template <typename Call>
  void PassUntilEnd(SyncGate::Time time, const Call& call) {
    Pass(time - kSecond);
    EXPECT_TRUE(call.waits());
    Pass(kSecond);
    EXPECT_FALSE(call.waits());
  }

  // The same for the worker's lease.
  void ExpectToExpireAfter(SyncGate::Time time, const GateWorker& worker) {
    Pass(time - kSecond);
    EXPECT_TRUE(StatsOf(worker).live);
    Pass(kSecond);
    EXPECT_FALSE(StatsOf(worker).live);
  }

  GateWorkerStats StatsOf(const GateWorker& worker) const {
    for (const GateWorkerStats& stats : gate->Stats().workers) {
      if (stats.device == worker.device) {
        return stats;
      }
    }
    return {};
  }

  void CheckAccounting() const {
    EXPECT_EQ(BrokenIdentities(gate->Stats(), num_updates_, num_applied_), "");
  }

  // Ends the gate, if there is one, and checks that nothing waits any more.
  void Finish() {
    if (gate != nullptr) {
      CheckAccounting();
      gate->Shutdown();
      CheckAccounting();
    }
    ExpectEndedOnce(&acquires_);
    ExpectEndedOnce(&quorums_);
    ExpectEndedOnce(&drains_);
    num_updates_ = num_applied_ = 0;
  }

  void TearDown() override { Finish(); }

  SyncGate::Time now = std::chrono::hours(1);
  std::unique_ptr<SyncGate> gate;
  int64_t generation = 0;

  const GateWorker a = Worker(0);
  const GateWorker b = Worker(1);
  const GateWorker c = Worker(2);
  const GateWorker restarted = Worker(0, /*incarnation=*/2);  // a, begun anew

 private:
  template <typename Call>
  static Call NewCall(std::vector<Call>* calls) {
    calls->push_back(std::make_shared<typename Call::element_type>());
    return calls->back();
  }

  template <typename Value>
  static void End(GateCall<Value>& call, const GateStatus& status,
                  const Value& value) {
    call.num_ends++;
    call.status = status;
    call.value = value;
  }

  static SyncGate::QuorumCallback Ender(const QuorumCall& call) {
    return [call](const GateStatus& status, const SyncGate::Quorum& quorum) {
      End(*call, status, quorum);
    };
  }

  template <typename Calls>
  static void ExpectEndedOnce(Calls* calls) {
    for (const auto& call : *calls) {
      EXPECT_EQ(call->num_ends, 1);
    }
    calls->clear();
  }

  std::vector<AcquireCall> acquires_;
  std::vector<QuorumCall> quorums_;
  std::vector<DrainCall> drains_;
  int64_t num_updates_ = 0;
  int64_t num_applied_ = 0;
};

}  // namespace tf_syncrep

#endif  // TESTS_CC_GATE_FIXTURE_H_
