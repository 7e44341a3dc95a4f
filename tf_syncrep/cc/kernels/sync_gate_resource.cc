#include "tf_syncrep/cc/kernels/sync_gate_resource.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/logging.h"
#include "tf_syncrep/cc/lib/gate/gate_event_log.h"

namespace tf_syncrep {
namespace {

// How late leases may end: by an eighth of their length, and by a second at
// most.
SyncGate::Time PollPeriod(const SyncGateOptions& options) {
  SyncGate::Time shortest = std::min(options.lease, options.start_lease);
  if (options.updater_lease.count() > 0) {
    shortest = std::min(shortest, options.updater_lease);
  }
  return std::clamp<SyncGate::Time>(shortest / 8, std::chrono::milliseconds(1),
                                    std::chrono::seconds(1));
}

SyncGateOptions WithListeners(SyncGateOptions options,
                              const std::shared_ptr<LeaseTimer::Bell>& bell) {
  options.alarm = [bell] { bell->Ring(); };
  options.log = [](const std::string& line) {
    LOG(WARNING) << "SyncReplicas: " << line;
  };
  options.observer = GateEventLog();
  return options;
}

}  // namespace

SyncGateResource::SyncGateResource(const SyncGateOptions& options)
    : options_(options),
      bell_(std::make_shared<LeaseTimer::Bell>()),
      gate_(std::make_shared<SyncGate>(WithListeners(options, bell_),
                                       LeaseTimer::SteadyTime)),
      timer_(gate_, PollPeriod(options), bell_) {}

std::string SyncGateResource::DebugString() const {
  const SyncGateStats stats = gate_->Stats();
  return absl::StrCat("SyncGate of generation ", stats.generation, ", round ",
                      stats.round, ", step ", stats.step);
}

absl::Status ToAbslStatus(const GateStatus& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code),
                      status.message);
}

SyncGate::Time Seconds(float seconds) {
  // Short enough for nanoseconds not to overflow.
  constexpr float kMaxSeconds = 1e9;
  return std::chrono::duration_cast<SyncGate::Time>(
      std::chrono::duration<double>(
          std::min(std::max(seconds, 0.0f), kMaxSeconds)));
}

absl::Status CheckPositiveSeconds(absl::string_view name, float seconds) {
  if (!(seconds > 0)) {  // NaN included
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be positive, but is ", seconds));
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep
