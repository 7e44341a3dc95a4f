// Makes a schedule that fails as small as it gets.

#ifndef TESTS_SIMULATOR_SHRINK_H_
#define TESTS_SIMULATOR_SHRINK_H_

#include <cstdint>

#include "tests/simulator/run.h"
#include "tests/simulator/schedule.h"

namespace tf_syncrep::simulator {

// How many events it takes to the failure. Where somebody is stuck, to where
// nothing comes of it any more: the rest is waiting.
int64_t NumEvents(const Outcome& outcome);

// Takes out events, halves and halves of halves down to single ones (Zeller and
// Hildebrandt 2002), and makes the cluster smaller, as long as it fails still.
// Runs at most `max_runs` schedules.
Outcome Shrink(const Outcome& failed, int max_runs = 20'000);

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_SHRINK_H_
