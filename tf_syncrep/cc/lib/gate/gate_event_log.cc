#include "tf_syncrep/cc/lib/gate/gate_event_log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>

namespace tf_syncrep {
namespace {

const char* NameOf(GateEvent::Kind kind) {
  switch (kind) {
    case GateEvent::Kind::kOpened:
      return "opened";
    case GateEvent::Kind::kPermitted:
      return "permitted";
    case GateEvent::Kind::kSpare:
      return "spare";
    case GateEvent::Kind::kReleased:
      return "released";
    case GateEvent::Kind::kAdmitted:
      return "admitted";
    case GateEvent::Kind::kLate:
      return "late";
    case GateEvent::Kind::kStale:
      return "stale";
    case GateEvent::Kind::kRejected:
      return "rejected";
    case GateEvent::Kind::kCommitted:
      return "committed";
    case GateEvent::Kind::kExpired:
      return "expired";
    case GateEvent::Kind::kVoid:
      return "void";
    case GateEvent::Kind::kAdvanced:
      return "advanced";
    case GateEvent::Kind::kEnded:
      return "ended";
  }
  return "unknown";
}

}  // namespace

std::string ToLine(const GateEvent& event) {
  std::string line = NameOf(event.kind);
  line += " generation=" + std::to_string(event.generation) +
          " round=" + std::to_string(event.round) +
          " value=" + std::to_string(event.value);
  if (!event.device.empty()) {
    line += " incarnation=" + std::to_string(event.incarnation) +
            " device=" + event.device;
  }
  if (!event.message.empty()) {
    line += " message=";
    for (const char c : event.message) {
      line += c == '\n' ? ' ' : c;
    }
  }
  return line;
}

std::function<void(const GateEvent&)> GateEventLog() {
  // No thread sets the environment while gates are made.
  const char* const folder =
      std::getenv(kGateEventsVariable);  // NOLINT(concurrency-mt-unsafe)
  if (folder == nullptr || *folder == '\0') {
    return nullptr;
  }
  static std::atomic<int> num_gates{0};
  const auto file = std::make_shared<std::ofstream>(
      std::string(folder) + "/gate-" + std::to_string(getpid()) + "-" +
      std::to_string(num_gates++) + ".events");
  if (!*file) {
    return nullptr;
  }
  return [file](const GateEvent& event) {
    *file << ToLine(event) << '\n' << std::flush;
  };
}

}  // namespace tf_syncrep
