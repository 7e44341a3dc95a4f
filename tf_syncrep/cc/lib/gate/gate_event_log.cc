#include "tf_syncrep/cc/lib/gate/gate_event_log.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>

namespace tf_syncrep {
namespace {

// In the order of GateEvent::Kind.
constexpr const char* kNames[] = {
    "opened",   "permitted", "spare",   "released", "admitted", "late", "stale",
    "rejected", "committed", "expired", "void",     "advanced", "ended"};
static_assert(std::size(kNames) ==
              static_cast<size_t>(GateEvent::Kind::kEnded) + 1);

}  // namespace

std::string ToLine(const GateEvent& event) {
  std::string line = kNames[static_cast<int>(event.kind)];
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
