#include "tests/simulator/generate.h"

#include <algorithm>
#include <array>
#include <vector>

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
  // Updaters that others wait for call again now and then.
  setup.timeout = setup.updater_lease == 0 && random->Pick(2) == 0 ? 0 : 1'000;
  setup.heartbeats = random->Pick(4) == 0;
  return setup;
}

}  // namespace

Generator::Generator(uint64_t seed)
    : random_(seed),
      more_(seed ^ 0x5851f42d4c957f2d),
      of_tables_(seed ^ 0x14057b7ef767814f) {
  setup_ = MakeSetup(&random_);
  // This is not drawn, so that seeds still find what they are known to find.
  setup_.gathers = seed % 4 == 0;
  num_events_ = 20 + random_.Pick(200);
  constexpr std::array<int64_t, 5> kFaults = {0, 10, 30, 80, 200};
  constexpr std::array<int64_t, 4> kPasses = {0, 10, 50, 150};
  constexpr std::array<int64_t, 4> kFine = {0, 100, 500, 1000};
  faults_ = kFaults[random_.Pick(kFaults.size())];
  passes_ = kPasses[random_.Pick(kPasses.size())];
  fine_ = kFine[random_.Pick(kFine.size())];
  latest_first_ = 3 * random_.Pick(2);
  setup_.chief_trains = setup_.terms && more_.Pick(3) == 0;
  constexpr std::array<int64_t, 4> kOrphans = {0, 20, 60, 120};
  orphans_ = kOrphans[more_.Pick(kOrphans.size())];
  holds_back_ = orphans_ > 0;
  num_events_ *= 4;
  if (setup_.chief_trains) {
    constexpr std::array<int64_t, 4> kFails = {0, 20, 100, 100};
    fails_ = kFails[more_.Pick(kFails.size())];
    is_late_ = more_.Pick(2) == 0;
  }
  if (more_.Pick(3) == 0) {
    setup_.num_readers = 1 + more_.Pick(2);
    setup_.num_items = 1 + more_.Pick(5);
    setup_.num_epochs = more_.Pick(4);
    setup_.shuffle = more_.Pick(2) == 0;
    constexpr std::array<int64_t, 3> kLeases = {5'000, 30'000, 600'000};
    setup_.item_lease = kLeases[more_.Pick(kLeases.size())];
    reads_ = 200 + more_.Pick(400);
    uneven_ = 1 + 4 * more_.Pick(2);
    constexpr std::array<int64_t, 3> kSaves = {0, 30, 100};
    saves_ = kSaves[more_.Pick(kSaves.size())];
    num_events_ = num_events_ * 1000 / (1000 - reads_);
  }
  if (of_tables_.Pick(4) == 0) {
    setup_.num_trainers = 1 + of_tables_.Pick(2);
    setup_.max_rows = 1 + of_tables_.Pick(8);
    setup_.num_keys = 2 + of_tables_.Pick(12);
    setup_.min_count = 1 + of_tables_.Pick(4) / 3;
    setup_.unused_for = of_tables_.Pick(4);
    setup_.least_recent = setup_.unused_for == 0 || of_tables_.Pick(3) == 0;
    trains_ = 300 + of_tables_.Pick(400);
    constexpr std::array<int64_t, 3> kMaintains = {20, 60, 150};
    maintains_ = kMaintains[of_tables_.Pick(kMaintains.size())];
    constexpr std::array<int64_t, 3> kKeeps = {0, 50, 150};
    keeps_ = kKeeps[of_tables_.Pick(kKeeps.size())];
    stalls_ = 3 * of_tables_.Pick(2);
    is_slow_ = of_tables_.Pick(4) > 0;
  }
}

Event Generator::Next(World* world) {
  if (of_tables_.PerMille(trains_)) {
    return Train(world);
  }
  if (more_.PerMille(reads_)) {
    return Read(world);
  }
  if (world->chief().is_tracing() && random_.Pick(4) > 0) {
    return Trace();
  }
  Event event;
  if (more_.PerMille(orphans_) && Orphan(*world, &event)) {
    return event;
  }
  if (more_.PerMille(fails_)) {
    event.kind = EventKind::kFailUpdate;
    return event;
  }
  if (random_.PerMille(faults_)) {
    return Fault();
  }
  if (random_.PerMille(passes_)) {
    return Pass();
  }
  return Progress(world);
}

// Events of the work queue's readers, and of its checkpoints.
Event Generator::Read(World* world) {
  Event event;
  const int64_t num_readers = setup_.num_workers * setup_.num_readers;
  int64_t reader = more_.Pick(num_readers);
  for (int64_t i = 1; i < uneven_; ++i) {  // the first ones are faster
    reader = std::min(reader, more_.Pick(num_readers));
  }
  event.task = {Task::Job::kReader, static_cast<int>(reader)};
  for (const auto& call : world->calls()) {
    // Late answers reach readers that wait.
    if (call->kind == CallKind::kItem &&
        call->state == Call::State::kOnItsWay && holds_back_) {
      const Call* question = world->readers()[call->from.number]->question();
      if (question != nullptr && question != call.get() &&
          question->state == Call::State::kWaits && more_.Pick(4) == 0) {
        return OfCall(*call, EventKind::kDeliver);
      }
    }
  }
  if (more_.PerMille(faults_)) {
    constexpr std::array kKinds = {
        EventKind::kCrash,  EventKind::kRestart, EventKind::kRestart,
        EventKind::kAgain,  EventKind::kCancel,  EventKind::kCancel,
        EventKind::kCancel, EventKind::kPass,    EventKind::kBreak,
        EventKind::kCut,    EventKind::kHeal,    EventKind::kRestore};
    const bool is_queues_task = more_.Pick(8) == 0;
    event.kind = kKinds[more_.Pick(kKinds.size())];
    event.other = {Task::Job::kServer,
                   static_cast<int>(setup_.num_servers - 1)};
    if (event.kind == EventKind::kPass) {
      event.value = setup_.item_lease * (1 + more_.Pick(4)) / 3;
    } else if (event.kind == EventKind::kRestore) {
      event.task = {};
    } else if (is_queues_task && (event.kind == EventKind::kCrash ||
                                  event.kind == EventKind::kRestart)) {
      event.task = event.other;
    }
    return event;
  }
  if (more_.PerMille(saves_)) {
    event.task = {};
    event.kind = more_.Pick(4) == 0 ? EventKind::kLimit : EventKind::kSave;
    event.value = more_.Pick(4) - 1;
    return event;
  }
  if (more_.PerMille(fine_)) {
    std::vector<const Call*> calls;
    for (const auto& call : world->calls()) {
      if (call->from.job == Task::Job::kReader &&
          call->state != Call::State::kWaits) {
        calls.push_back(call.get());
      }
    }
    if (!calls.empty() && more_.Pick(4) > 0) {
      const Call& call = *calls[more_.Pick(calls.size())];
      const Reader& from = *world->readers()[call.from.number];
      if (holds_back_ && from.question() != &call && more_.Pick(16) > 0) {
        return event;
      }
      if (faults_ > 0 && call.state == Call::State::kComesBack &&
          more_.Pick(8) == 0) {
        event.kind = EventKind::kCancel;  // its answer is lost
        event.task = call.from;
        return event;
      }
      return OfCall(call, call.state == Call::State::kOnItsWay
                              ? EventKind::kDeliver
                              : EventKind::kReturn);
    }
    event.kind = EventKind::kSend;
  }
  return event;
}

// Events of trainers of the table that grows, of its maintenance, and of its
// checkpoints.
Event Generator::Train(World* world) {
  Event event;
  if (of_tables_.PerMille(maintains_)) {
    event.kind = EventKind::kMaintain;
    return event;
  }
  if (of_tables_.PerMille(keeps_)) {
    event.kind =
        of_tables_.Pick(3) == 0 ? EventKind::kLoadTable : EventKind::kSaveTable;
    return event;
  }
  event.task = {Task::Job::kTrainer,
                static_cast<int>(
                    of_tables_.Pick(setup_.num_workers * setup_.num_trainers))};
  event.other = {Task::Job::kServer, static_cast<int>(setup_.num_servers) - 1};
  if (of_tables_.PerMille(faults_)) {
    constexpr std::array kKinds = {EventKind::kCrash,   EventKind::kRestart,
                                   EventKind::kRestart, EventKind::kRestart,
                                   EventKind::kBreak,   EventKind::kCut,
                                   EventKind::kHeal,    EventKind::kPass};
    event.kind = kKinds[of_tables_.Pick(kKinds.size())];
    if (event.kind == EventKind::kPass) {
      event.value = 1 + of_tables_.Pick(10'000);
    } else if ((event.kind == EventKind::kCrash ||
                event.kind == EventKind::kRestart) &&
               of_tables_.Pick(3) == 0) {
      event.task = event.other;
    }
    return event;
  }
  if (of_tables_.PerMille(std::max<int64_t>(fine_, 300))) {
    std::vector<const Call*> calls;
    for (const auto& call : world->calls()) {
      if (call->from.job == Task::Job::kTrainer ||
          call->kind == CallKind::kMaintain ||
          call->kind == CallKind::kSaveTable ||
          call->kind == CallKind::kLoadTable) {
        calls.push_back(call.get());
      }
    }
    if (!calls.empty() && of_tables_.Pick(4) > 0) {
      // In some schedules the latest call moves first, so that others stay for
      // long.
      int64_t place = of_tables_.Pick(calls.size());
      for (int64_t i = 0; i < stalls_; ++i) {
        place = std::max(place, of_tables_.Pick(calls.size()));
      }
      const Call& call = *calls[place];
      return OfCall(call,
                    call.state == Call::State::kOnItsWay ? EventKind::kDeliver
                    : call.state == Call::State::kRuns   ? EventKind::kRun
                                                         : EventKind::kReturn);
    }
    event.kind = EventKind::kSend;
  }
  return event;
}

Event Generator::Pass() {
  // Times are around the ends of leases, and far from them.
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

// A chief that is not ready to update gives signs of life now and then, while
// time goes by.
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
      // In some schedules the latest call moves first, so that others stay for
      // long.
      int64_t place = random_.Pick(calls.size());
      for (int64_t i = 0; i < latest_first_; ++i) {
        place = std::max(place, random_.Pick(calls.size()));
      }
      const Call& call = *calls[place];
      if (MayCome(call, world)) {
        return OfCall(call, call.state == Call::State::kOnItsWay
                                ? EventKind::kDeliver
                                : EventKind::kReturn);
      }
    } else {
      event.kind = EventKind::kSend;
    }
  }
  event.task = AnyActor();
  if (event.task == Task() && is_slow_ && of_tables_.Pick(8) > 0 &&
      std::any_of(world->calls().begin(), world->calls().end(),
                  [](const auto& call) {
                    return call->kind == CallKind::kMaintain &&
                           call->state == Call::State::kRuns;
                  })) {
    event.task = AnyWorker();  // the chief would go on until it is over
  }
  return event;
}

bool Generator::Orphan(const World& world, Event* event) {
  std::vector<const Call*> calls;
  for (const auto& call : world.calls()) {
    if (call->state == Call::State::kOnItsWay) {
      calls.push_back(call.get());
    }
  }
  if (calls.empty()) {
    return false;
  }
  event->task = calls[more_.Pick(calls.size())]->from;
  const bool is_chief = event->task.job == Task::Job::kChief;
  event->kind = more_.Pick(2) == 0 ? EventKind::kCrash
                : is_chief         ? EventKind::kFailUpdate
                                   : EventKind::kAgain;
  return true;
}

bool Generator::MayCome(const Call& call, World* world) {
  const auto waits = [&call](const Actor& actor) {
    const auto& pending = actor.pending();
    return std::find(pending.begin(), pending.end(), &call) != pending.end();
  };
  bool is_awaited = waits(world->chief());
  for (const auto& worker : world->workers()) {
    is_awaited |= waits(*worker);
  }
  // Some arrive when others have long gone on.
  const bool is_late =
      (holds_back_ && !is_awaited) || (is_late_ && call.from == kChiefsReplica);
  return !is_late || more_.Pick(16) == 0;
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
  const auto number = static_cast<int>(random_.Pick(setup_.num_workers));
  if (is_late_ && number == 0 && more_.Pick(8) > 0) {
    return {Task::Job::kWorker, static_cast<int>(setup_.num_workers) - 1};
  }
  return {Task::Job::kWorker, number};
}

Task Generator::AnyServer() {
  return {Task::Job::kServer,
          static_cast<int>(random_.Pick(setup_.num_servers))};
}

Task Generator::AnyActor() {
  return random_.Pick(3) == 0 ? Task() : AnyWorker();
}

}  // namespace tf_syncrep::simulator
