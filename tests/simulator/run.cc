#include "tests/simulator/run.h"

#include <utility>

#include "tests/simulator/generate.h"
#include "tests/simulator/settle.h"

namespace tf_syncrep::simulator {
namespace {

class Runner {
 public:
  Runner(const Setup& setup, World::Trace trace)
      : trace_(std::move(trace)), world_(setup, trace_) {
    outcome_.scheduled.setup = outcome_.all.setup = setup;
  }

  World& world() { return world_; }

  void Schedule(const Event& event) {
    if (Apply(event)) {
      outcome_.scheduled.events.push_back(event);
    }
  }

  Outcome Finish() {
    if (trace_) {
      trace_("# From here on there are no faults any more.");
    }
    Settle(&world_, [this](const Event& event) { return Apply(event); });
    outcome_.failure = world_.failure();
    outcome_.updates = world_.twin().updates();
    outcome_.digest = world_.digest();
    return std::move(outcome_);
  }

 private:
  bool Apply(const Event& event) {
    if (!world_.failure().empty() || !world_.Apply(event)) {
      return false;
    }
    outcome_.all.events.push_back(event);
    return true;
  }

  const World::Trace trace_;
  World world_;
  Outcome outcome_;
};

}  // namespace

Outcome RunSeed(uint64_t seed, World::Trace trace) {
  Generator generator(seed);
  Runner runner(generator.setup(), std::move(trace));
  for (int64_t i = 0; i < generator.num_events(); ++i) {
    if (!runner.world().failure().empty()) {
      break;
    }
    runner.Schedule(generator.Next(&runner.world()));
  }
  return runner.Finish();
}

Outcome RunSchedule(const Schedule& schedule, World::Trace trace) {
  Runner runner(schedule.setup, std::move(trace));
  for (const Event& event : schedule.events) {
    runner.Schedule(event);
  }
  return runner.Finish();
}

}  // namespace tf_syncrep::simulator
