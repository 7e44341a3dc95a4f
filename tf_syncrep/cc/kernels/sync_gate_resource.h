// The SyncGate of a task, as a TensorFlow resource.

#ifndef TF_SYNCREP_CC_KERNELS_SYNC_GATE_RESOURCE_H_
#define TF_SYNCREP_CC_KERNELS_SYNC_GATE_RESOURCE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"
#include "tf_syncrep/cc/lib/lease_timer.h"

namespace tf_syncrep {

// Holds a gate, and the thread that polls it for its leases.
class SyncGateResource final : public tensorflow::ResourceBase {
 public:
  explicit SyncGateResource(const SyncGateOptions& options);

  std::string DebugString() const override;

  const SyncGateOptions& options() const { return options_; }

  // Waits keep the gate alive; all of them end when the resource is destroyed.
  const std::shared_ptr<SyncGate>& gate() const { return gate_; }

  bool has_thread() const { return timer_.is_running(); }

 private:
  const SyncGateOptions options_;
  // The bell that the gate rings; it may outlive the timer.
  const std::shared_ptr<LeaseTimer::Bell> bell_;
  const std::shared_ptr<SyncGate> gate_;
  LeaseTimer timer_;
};

absl::Status ToAbslStatus(const GateStatus& status);

// The length of a time in seconds, from zero to longer than any training.
SyncGate::Time Seconds(float seconds);

// Returns InvalidArgument unless the attribute `name` is positive.
absl::Status CheckPositiveSeconds(absl::string_view name, float seconds);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_SYNC_GATE_RESOURCE_H_
