#include "tf_syncrep/cc/kernels/sync_gate_resource.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"
#include "tf_syncrep/cc/tf/scalar_input.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelContext;

// How late a lease may end: an eighth of it, and a second at most.
SyncGate::Time PollPeriod(const SyncGateOptions& options) {
  SyncGate::Time shortest = std::min(options.lease, options.start_lease);
  if (options.updater_lease.count() > 0) {
    shortest = std::min(shortest, options.updater_lease);
  }
  return std::clamp<SyncGate::Time>(shortest / 8, std::chrono::milliseconds(1),
                                    std::chrono::seconds(1));
}

}  // namespace

SyncGateResource::SyncGateResource(const SyncGateOptions& options)
    : options_(options),
      gate_(std::make_shared<SyncGate>(options, LeaseTimer::SteadyTime)),
      timer_([gate = gate_.get()] { return gate->Poll(); },
             PollPeriod(options)) {}

SyncGateResource::~SyncGateResource() { gate_->Shutdown(); }

std::string SyncGateResource::DebugString() const {
  const SyncGateStats stats = gate_->Stats();
  return absl::StrCat("SyncGate of generation ", stats.generation, ", round ",
                      stats.round, ", step ", stats.step);
}

absl::Status LookupGate(OpKernelContext* ctx, std::shared_ptr<SyncGate>* gate) {
  TF_RETURN_IF_ERROR(CheckScalarInput(ctx, "handle"));
  tensorflow::core::RefCountPtr<SyncGateResource> resource;
  TF_RETURN_IF_ERROR(tensorflow::LookupResource(
      ctx, tensorflow::HandleFromInput(ctx, 0), &resource));
  *gate = resource->gate();
  return absl::OkStatus();
}

absl::Status ToAbslStatus(const GateStatus& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code),
                      status.message);
}

}  // namespace tf_syncrep
