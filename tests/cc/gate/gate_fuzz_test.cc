// A gate gets what may come over the wire: calls in any order, by anybody,
// about any generation and round. Its accounts must balance, and each wait must
// end once.

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "tests/cc/fuzz_input.h"
#include "tests/cc/gate/gate_accounting.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"

namespace tf_syncrep {
namespace {

class GateFuzz {
 public:
  explicit GateFuzz(FuzzInput* input) : input_(*input) {}

  void Run() {
    SyncGate gate(Options(), [this] { return now_; });
    while (!input_.is_over() && !testing::Test::HasFailure()) {
      Call(&gate);
      gate.Poll();
      EXPECT_EQ(BrokenIdentities(gate.Stats(), num_updates_, num_applied_), "");
    }
    gate.Shutdown();
    for (const auto& [wait, num_ends] : ends_) {
      EXPECT_EQ(num_ends, 1) << "each wait ends once";
    }
  }

 private:
  SyncGateOptions Options() {
    SyncGateOptions options;
    do {
      options.quorum = input_.Number();
      options.total = input_.Number();
      options.strict = input_.Pick(2) == 0;
      options.gathers = input_.Pick(2) == 0;
      options.lease = Seconds();
      options.start_lease = Seconds();
      options.updater_lease = Seconds();
    } while (!SyncGate::CheckOptions(options).ok());
    return options;
  }

  // Converts an op's attribute to a time, as in sync_gate_kernels.cc.
  SyncGate::Time Seconds() {
    constexpr int64_t kMost = 1'000'000'000;
    const int64_t seconds = input_.Number();
    return std::chrono::seconds(
        seconds < 0 ? 0 : (seconds > kMost ? kMost : seconds));
  }

  GateTerms Terms() {
    GateTerms terms;
    if (input_.Pick(2) == 0) {
      terms.quorum = input_.Number();
      terms.total = input_.Number();
      terms.lease = Seconds();
      terms.start_lease = Seconds();
    }
    return terms;
  }

  GateWorker Worker() {
    const int name = input_.Pick(6);
    std::string device = name == 5 ? std::string() : std::string(1, 'a' + name);
    return {device, static_cast<uint64_t>(input_.Pick(3))};
  }

  // Returns mostly the present generation, so that calls have effects.
  int64_t Generation(const SyncGateStats& stats) {
    return input_.Pick(4) == 0 ? input_.Number() : stats.generation;
  }
  int64_t Round(const SyncGateStats& stats) {
    return input_.Pick(4) == 0 ? input_.Number() : stats.round;
  }

  SyncGate::QuorumCallback EndQuorum() {
    const int wait = ++num_waits_;
    ends_[wait] = 0;
    return [this, wait](const GateStatus&, const SyncGate::Quorum&) {
      ++ends_[wait];
    };
  }

  void Call(SyncGate* gate) {
    const SyncGateStats stats = gate->Stats();
    switch (input_.Pick(20)) {
      case 0:
      case 1:
      case 2: {
        const int wait = ++num_waits_;
        ends_[wait] = 0;
        gate->Acquire(
            Worker(),
            input_.Pick(3) == 0 ? SyncGate::AcquireKind::kFirst
                                : SyncGate::AcquireKind::kNext,
            Terms(),
            [this, wait](const GateStatus&, const SyncGate::Permit& permit) {
              ++ends_[wait];
              last_permit_ = permit;
            });
        return;
      }
      case 3:
      case 4: {
        SyncGate::Admission admission;
        gate->Admit(Generation(stats), Worker(), Round(stats),
                    input_.Pick(4) > 0, &admission);
        return;
      }
      case 5:
      case 6:
        gate->Commit(Generation(stats), Worker(), Round(stats));
        return;
      case 7:
        gate->Abort(Generation(stats), Worker(), Round(stats));
        return;
      case 8:
        gate->ReturnPermit(Worker(), last_permit_);
        return;
      case 9:
        gate->Leave(Worker());
        return;
      case 10:
        gate->Open(input_.Number(), Terms());
        return;
      case 11:
        gate->AddPasses(input_.Number());
        return;
      case 12:
        gate->WaitQuorum(Generation(stats), Seconds(), EndQuorum());
        return;
      case 13:
        gate->Flush(Generation(stats), EndQuorum());
        return;
      case 14:
        gate->Drain(
            Generation(stats),
            [end = EndQuorum()](const GateStatus& status) { end(status, {}); });
        return;
      case 15: {
        bool advanced = false;
        gate->Advance(Generation(stats), Round(stats), input_.Number(),
                      &advanced);
        num_updates_ += advanced ? 1 : 0;
        num_applied_ += advanced ? stats.pending : 0;
        return;
      }
      case 16:
        gate->Configure(input_.Number(), input_.Number());
        return;
      case 17:
        input_.Pick(2) == 0
            ? gate->Close(Generation(stats))
            : gate->Fail(Generation(stats), {1 + input_.Pick(16),
                                             std::string(input_.Pick(4), 'x')});
        return;
      case 18:
        input_.Pick(2) == 0 ? gate->CancelUpdater(Generation(stats), Worker())
                            : static_cast<void>(gate->Cancel(input_.Number()));
        return;
      default:
        now_ += std::chrono::milliseconds(1 << input_.Pick(22));
        return;
    }
  }

  FuzzInput& input_;
  SyncGate::Time now_ = std::chrono::hours(1);
  SyncGate::Permit last_permit_;
  std::map<int, int> ends_;  // by wait
  int num_waits_ = 0;
  int64_t num_updates_ = 0;
  int64_t num_applied_ = 0;
};

TEST(GateFuzzTest, AccountsBalanceAndEachWaitEndsOnce) {
  RunSeeds([](FuzzInput* input) { GateFuzz(input).Run(); });
}

}  // namespace
}  // namespace tf_syncrep
