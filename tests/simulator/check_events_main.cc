// check_events FILE...: checks the events that gates of real clusters have
// written into the folder that TF_SYNCREP_GATE_EVENTS names, with a file for
// each gate. The status is 1 if a rule was broken.

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/simulator/event_checker.h"

namespace {

using tf_syncrep::simulator::EventChecker;

// Returns the broken rule; empty if there is none.
std::string Check(const std::string& name, EventChecker* checker) {
  std::ifstream file(name);
  if (!file) {
    return "cannot be read";
  }
  std::string line;
  while (std::getline(file, line) && checker->error().empty()) {
    if (file.eof()) {
      break;  // its process was killed while it wrote this
    }
    tf_syncrep::GateEvent event;
    std::string error;
    if (!tf_syncrep::simulator::ParseEvent(line, &event, &error)) {
      return error;
    }
    checker->See(event);
  }
  return checker->error();
}

}  // namespace

int main(int argc, char** argv) {
  int status = 0;
  for (int i = 1; i < argc; ++i) {
    EventChecker checker;
    const std::string error = Check(argv[i], &checker);
    std::printf("%s: %lld events, %lld updates, %lld voids: %s\n", argv[i],
                static_cast<long long>(checker.num_events()),
                static_cast<long long>(checker.num_updates()),
                static_cast<long long>(checker.num_voids()),
                error.empty() ? "all well" : error.c_str());
    status = error.empty() ? status : 1;
  }
  return status;
}
