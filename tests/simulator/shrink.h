// Makes a failing schedule as small as possible.

#ifndef TESTS_SIMULATOR_SHRINK_H_
#define TESTS_SIMULATOR_SHRINK_H_

#include <cstdint>

#include "tests/simulator/run.h"
#include "tests/simulator/schedule.h"

namespace tf_syncrep::simulator {

// Returns how many events lead to the failure. If somebody is stuck, these end
// where events have no more effect: the rest is waiting.
int64_t NumEvents(const Outcome& outcome);

// Removes events, first halves, then halves of halves, down to single ones
// (Zeller and Hildebrandt 2002), and makes the cluster smaller, as long as the
// schedule still fails. Runs at most `max_runs` schedules.
Outcome Shrink(const Outcome& failed, int max_runs = 20'000);

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_SHRINK_H_
