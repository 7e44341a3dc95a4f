#include "tests/simulator/generate.h"

#include <algorithm>
#include <array>

namespace tf_syncrep::simulator {
namespace {

Setup MakeSetup(Random* random) {
  Setup setup;
  setup.num_workers = 1 + random->Pick(4);
  setup.num_servers = 1 + random->Pick(3);
  setup.num_variables = setup.num_servers + random->Pick(2);
  setup.sparse = random->Pick(3) == 0;
  setup.quorum = 1 + random->Pick(4);
  setup.total = random->Pick(2) == 0 ? setup.num_workers : 1 + random->Pick(4);
  setup.strict = random->Pick(2) == 0;
  setup.terms = random->Pick(2) == 0;
  setup.lease = random->Pick(2) == 0 ? 10'000 : 60'000;
  setup.start_lease = random->Pick(2) == 0 ? 60'000 : 600'000;
  setup.updater_lease = random->Pick(2) == 0 ? 0 : 60'000;
  // An updater that is waited for calls anew now and then.
  setup.timeout = setup.updater_lease == 0 && random->Pick(2) == 0 ? 0 : 1'000;
  setup.heartbeats = random->Pick(4) == 0;
  return setup;
}

}  // namespace

Generator::Generator(uint64_t seed) : random_(seed) {
  setup_ = MakeSetup(&random_);
  // Not drawn: what is known to be found by a seed stays so.
  setup_.gathers = seed % 4 == 0;
  num_events_ = 20 + random_.Pick(200);
  constexpr std::array<int64_t, 5> kFaults = {0, 10, 30, 80, 200};
  constexpr std::array<int64_t, 4> kPasses = {0, 10, 50, 150};
  constexpr std::array<int64_t, 4> kFine = {0, 100, 500, 1000};
  faults_ = kFaults[random_.Pick(kFaults.size())];
  passes_ = kPasses[random_.Pick(kPasses.size())];
  fine_ = kFine[random_.Pick(kFine.size())];
  latest_first_ = 3 * random_.Pick(2);
}

Event Generator::Next(World* world) {
  if (world->chief().is_tracing() && random_.Pick(4) > 0) {
    return Trace();
  }
  if (random_.PerMille(faults_)) {
    return Fault();
  }
  if (random_.PerMille(passes_)) {
    return Pass();
  }
  return Progress(world);
}

Event Generator::Pass() {
  // Around the ends of leases, and far from them.
  const std::array<int64_t, 8> times = {1,
                                        100,
                                        2'000,
                                        setup_.lease / 3,
                                        setup_.lease * 9 / 10,
                                        setup_.lease + 1,
                                        setup_.start_lease / 2,
                                        setup_.start_lease + 1};
  Event pass;
  pass.kind = EventKind::kPass;
  pass.value = times[random_.Pick(times.size())];
  return pass;
}

// A chief that is not ready to update: it is heard of now and then, and time
// goes by.
Event Generator::Trace() {
  Event event;
  switch (random_.Pick(4)) {
    case 0:
      event.kind = EventKind::kHeartbeat;
      return event;
    case 1:
      return Pass();
    default:
      event.task = random_.Pick(2) == 0 ? Task() : AnyWorker();
      return event;
  }
}

Event Generator::Progress(World* world) {
  Event event;
  if (random_.PerMille(fine_)) {
    const auto& calls = world->calls();
    if (!calls.empty() && random_.Pick(4) > 0) {
      // In some schedules the latest first, so that others stay for long.
      int64_t place = random_.Pick(calls.size());
      for (int64_t i = 0; i < latest_first_; ++i) {
        place = std::max(place, random_.Pick(calls.size()));
      }
      const Call& call = *calls[place];
      return OfCall(call, call.state == Call::State::kOnItsWay
                              ? EventKind::kDeliver
                              : EventKind::kReturn);
    }
    event.kind = EventKind::kSend;
  }
  event.task = AnyActor();
  return event;
}

Event Generator::Fault() {
  Event event;
  constexpr std::array kKinds = {
      EventKind::kCrash,     EventKind::kCrash,     EventKind::kCrash,
      EventKind::kRestart,   EventKind::kRestart,   EventKind::kRestart,
      EventKind::kCut,       EventKind::kHeal,      EventKind::kHeal,
      EventKind::kBreak,     EventKind::kBreak,     EventKind::kAbort,
      EventKind::kAbort,     EventKind::kAgain,     EventKind::kAgain,
      EventKind::kAgain,     EventKind::kCancel,    EventKind::kReject,
      EventKind::kLeave,     EventKind::kFinish,    EventKind::kFlush,
      EventKind::kFlush,     EventKind::kGiveUp,    EventKind::kGiveUp,
      EventKind::kHeartbeat, EventKind::kHeartbeat, EventKind::kClose,
      EventKind::kFail,      EventKind::kConfigure, EventKind::kPasses,
      EventKind::kDelete};
  event.kind = kKinds[random_.Pick(kKinds.size())];
  switch (event.kind) {
    case EventKind::kCrash:
    case EventKind::kRestart:
      event.task = random_.Pick(4) == 0 ? AnyServer() : AnyActor();
      break;
    case EventKind::kCut:
    case EventKind::kHeal:
    case EventKind::kBreak:
      event.task = AnyActor();
      event.other = AnyServer();
      break;
    case EventKind::kAbort:
    case EventKind::kAgain:
    case EventKind::kCancel:
    case EventKind::kReject:
    case EventKind::kLeave:
      event.task = AnyWorker();
      break;
    case EventKind::kConfigure:
      // A chief of a v1 session does not.
      event.value = setup_.terms ? 0 : 1 + random_.Pick(4);
      event.other.number = static_cast<int>(1 + random_.Pick(4));
      break;
    case EventKind::kPasses:
      event.value = 1 + random_.Pick(3);
      break;
    default:
      break;
  }
  return event;
}

Event Generator::OfCall(const Call& call, EventKind kind) const {
  Event event;
  event.kind = kind;
  event.task = call.from;
  event.life = call.from_life;
  event.call = call.kind;
  event.variable = call.variable;
  event.other = call.to;
  return event;
}

Task Generator::AnyWorker() {
  return {Task::Job::kWorker,
          static_cast<int>(random_.Pick(setup_.num_workers))};
}

Task Generator::AnyServer() {
  return {Task::Job::kServer,
          static_cast<int>(random_.Pick(setup_.num_servers))};
}

Task Generator::AnyActor() {
  return random_.Pick(3) == 0 ? Task() : AnyWorker();
}

}  // namespace tf_syncrep::simulator
