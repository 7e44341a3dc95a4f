// What must come of any schedule once its faults are over.

#ifndef TESTS_SIMULATOR_SETTLE_H_
#define TESTS_SIMULATOR_SETTLE_H_

#include <functional>

#include "tests/simulator/schedule.h"
#include "tests/simulator/world.h"

namespace tf_syncrep::simulator {

// Heals the network and starts what is down, but for workers, of which one is
// enough, and has everybody go on in turns. Then updates must be made, training
// must end when the chief says so, and nobody may wait any more; all in bounded
// virtual time. Fails the world otherwise.
//
// `apply` is World::Apply(), or notes what it does.
void Settle(World* world, const std::function<bool(const Event&)>& apply);

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_SETTLE_H_
