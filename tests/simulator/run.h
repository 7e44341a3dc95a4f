// Runs the schedules of seeds, and given ones.

#ifndef TESTS_SIMULATOR_RUN_H_
#define TESTS_SIMULATOR_RUN_H_

#include <cstdint>
#include <string>

#include "tests/simulator/schedule.h"
#include "tests/simulator/world.h"

namespace tf_syncrep::simulator {

struct Outcome {
  std::string failure;  // empty if there was none
  // All events up to the failure or the end: first the schedule, then the
  // events of Settle().
  Schedule scheduled;
  Schedule all;
  int64_t updates = 0;
  uint64_t digest = 0;  // of everything that happened

  bool is_stuck() const { return failure.rfind("stuck: ", 0) == 0; }
};

// Runs the schedule of a seed. It is chosen while it runs, since what is
// possible depends on what has happened.
Outcome RunSeed(uint64_t seed, World::Trace trace = nullptr);

// Runs a given schedule. Events that are not possible are skipped.
Outcome RunSchedule(const Schedule& schedule, World::Trace trace = nullptr);

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_RUN_H_
