// Runs schedules: those of seeds, and those that are given.

#ifndef TESTS_SIMULATOR_RUN_H_
#define TESTS_SIMULATOR_RUN_H_

#include <cstdint>
#include <string>

#include "tests/simulator/schedule.h"
#include "tests/simulator/world.h"

namespace tf_syncrep::simulator {

struct Outcome {
  std::string failure;  // empty: all is well
  // What happened up to the failure or the end: first the schedule, then what
  // Settle() did.
  Schedule scheduled;
  Schedule all;
  int64_t updates = 0;
  uint64_t digest = 0;  // of all that happened

  bool is_stuck() const { return failure.rfind("stuck: ", 0) == 0; }
};

// The schedule of a seed: chosen while it runs, as what is possible depends on
// what has happened.
Outcome RunSeed(uint64_t seed, World::Trace trace = nullptr);

// A given one. Events that are not possible are left out.
Outcome RunSchedule(const Schedule& schedule, World::Trace trace = nullptr);

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_RUN_H_
