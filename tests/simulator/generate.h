// Chooses the next event, by a seed.

#ifndef TESTS_SIMULATOR_GENERATE_H_
#define TESTS_SIMULATOR_GENERATE_H_

#include <cstdint>

#include "tests/simulator/random.h"
#include "tests/simulator/schedule.h"
#include "tests/simulator/world.h"

namespace tf_syncrep::simulator {

class Generator {
 public:
  explicit Generator(uint64_t seed);

  const Setup& setup() const { return setup_; }
  int64_t num_events() const { return num_events_; }

  // Returns an event that may be possible in this world.
  Event Next(World* world);

 private:
  Event Fault();
  Event Pass();
  Event Trace();
  Event Progress(World* world);
  Event Read(World* world);
  Event Train(World* world);
  // Returns true with the fault that leaves a call under way without its
  // caller.
  bool Orphan(const World& world, Event* event);
  bool MayCome(const Call& call, World* world);
  Event OfCall(const Call& call, EventKind kind) const;
  Task AnyWorker();
  Task AnyServer();
  Task AnyActor();

  Random random_;
  Setup setup_;
  int64_t num_events_;
  int64_t faults_;  // of a thousand events
  int64_t passes_;
  int64_t fine_;  // of a thousand steps: message by message
  int64_t latest_first_;
  // Draws for features that were added later, so that seeds find what they
  // found before.
  Random more_;
  int64_t reads_ = 0;  // of a thousand events
  int64_t saves_ = 0;  // of these, and limits
  int64_t uneven_ = 1;
  int64_t orphans_ = 0;      // of a thousand events
  int64_t fails_ = 0;        // updates
  bool is_late_ = false;     // the replica in the chief's process
  bool holds_back_ = false;  // what nobody waits for any more
  // The same for tables that grow, which came later.
  Random of_tables_;
  int64_t trains_ = 0;     // of a thousand events
  int64_t maintains_ = 0;  // of these
  int64_t keeps_ = 0;      // of these: checkpoints
  int64_t stalls_ = 0;     // ops that others are to overtake
  bool is_slow_ = false;   // maintenances take many events
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_GENERATE_H_
