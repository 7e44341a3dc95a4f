#include "tests/simulator/settle.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tf_syncrep::simulator {
namespace {

using Time = World::Time;

constexpr int kUpdates = 3;
// More events than all bounded waits can need: this would be an endless loop.
constexpr int kMostEvents = 100'000;
constexpr Time kSlack = std::chrono::seconds(60);

class Settler {
 public:
  Settler(World* world, const std::function<bool(const Event&)>& apply)
      : world_(*world), apply_(apply) {}

  void Run() {
    Heal();
    if (!world_.chief().is_up()) {
      WaitForLostUpdater();
    }
    StartAll();
    if (world_.setup().num_readers > 0) {
      Read();
    }
    Update();
    End();
  }

 private:
  bool Do(EventKind kind, Task task = {}, Task other = {}, int64_t value = 0) {
    ++num_events_;
    Event event;
    event.kind = kind;
    event.task = task;
    event.other = other;
    event.value = value;
    return apply_(event);
  }

  bool is_good() const {
    return world_.failure().empty() && num_events_ < kMostEvents;
  }

  void Heal() {
    const auto cuts = world_.cuts();
    for (const auto& [task, other] : cuts) {
      Do(EventKind::kHeal, task, other);
    }
    for (int i = 0; i < world_.setup().num_servers; ++i) {
      if (!world_.servers()[i]->is_up()) {
        Do(EventKind::kRestart, {Task::Job::kServer, i});
      }
    }
  }

  // Nobody may wait for ever for a chief that does not come back.
  void WaitForLostUpdater() {
    const Setup& setup = world_.setup();
    if (setup.updater_lease == 0) {
      return;
    }
    const Time bound = 2 * std::chrono::milliseconds(std::max(
                               setup.updater_lease, setup.start_lease)) +
                       kSlack;
    const Time begin = world_.now();
    std::vector<int64_t> waiting;
    for (const auto& call : world_.calls()) {
      // Readers may wait for other readers.
      if (call->state == Call::State::kWaits && call->kind != CallKind::kItem) {
        waiting.push_back(call->number);
      }
    }
    const SyncGateStats stats = world_.servers()[0]->gate()->Stats();
    if (waiting.empty() || stats.generation == 0) {
      return;  // before the first Open() everybody waits
    }
    GoOnUntil([&] { return world_.now() - begin > bound; }, bound + kSlack);
    for (const auto& call : world_.calls()) {
      if (call->state == Call::State::kWaits &&
          std::find(waiting.begin(), waiting.end(), call->number) !=
              waiting.end()) {
        Stick(Text(call->from) + " waits for a chief that is gone");
      }
    }
  }

  void StartAll() {
    bool has_live = false;
    for (const auto& worker : world_.workers()) {
      has_live |= worker->is_up() && !worker->is_over();
    }
    for (const auto& worker : world_.workers()) {
      if (!has_live) {
        StartWorker(*worker);
      }
    }
    StartChief();
  }

  void StartChief() {
    if (world_.chief().MayRestart() || world_.chief().has_finished()) {
      Do(EventKind::kCrash);
      Do(EventKind::kRestart);
    }
  }

  // The longest time for which a worker may have to be waited for: a first
  // step, or twice the longest silence that counts.
  Time Bound() const {
    const Setup& setup = world_.setup();
    return 5 * std::chrono::milliseconds(setup.start_lease) +
           6 * std::chrono::milliseconds(setup.lease) + kSlack;
  }

  // The same for readers. Late questions of readers that are gone may each get
  // an item, one after the other, and have it for its lease.
  Time BoundOfReading() const {
    const Setup& setup = world_.setup();
    return Bound() + (setup.num_readers > 0 ? 10 : 0) *
                         std::chrono::milliseconds(setup.item_lease);
  }

  void Update() {
    const int64_t wanted = world_.twin().updates() + kUpdates;
    GoOnUntil(
        [&] {
          // The chief's gate is gone, or its training has failed.
          StartChief();
          StartSomeWorker();
          return world_.twin().updates() >= wanted;
        },
        Bound());
    if (world_.twin().updates() < wanted) {
      Stick("no updates are made, with live workers and a chief");
    }
  }

  void StartSomeWorker() {
    for (const auto& worker : world_.workers()) {
      if (worker->is_up() && !worker->is_over()) {
        return;
      }
    }
    StartWorker(*world_.workers()[0]);
  }

  void StartWorker(const Worker& worker) {
    if (!Do(EventKind::kRestart, worker.task()) && worker.is_over()) {
      // Others in its process go on.
      Do(EventKind::kCrash, worker.task());
      Do(EventKind::kRestart, worker.task());
    }
  }

  // Each item is read to its end, whatever happened, and readers hear of the
  // end.
  void Read() {
    const Setup& setup = world_.setup();
    int64_t limit = WorkQueue::kNoLimit;
    const auto is_over = [&] {
      const WatchedQueue* queue = world_.queue();
      if (queue == nullptr) {
        StartChief();
        return false;
      }
      if (setup.num_epochs == 0 && limit == WorkQueue::kNoLimit) {
        limit = queue->Stats().epoch;
      }
      if (queue->Stats().limit != limit) {
        Do(EventKind::kLimit, {}, {}, limit);
        StartChief();
        GoChief();
        return false;
      }
      bool is_over = queue->checker().AllDone();
      for (const auto& reader : world_.readers()) {
        is_over &= reader->is_over() || !reader->is_up();
      }
      return is_over;
    };
    GoOnUntil(is_over, BoundOfReading(), /*reading=*/true);
    if (is_good() && !is_over()) {
      Stick("not all items of the work queue are read, or readers wait");
    } else if (is_good()) {
      const std::string wrong = world_.CheckReading();
      if (!wrong.empty()) {
        world_.Fail("work queue: " + wrong);
      }
    }
  }

  // Begins the passes of readers that were told of the end too early.
  void BeginPasses() {
    const WatchedQueue* queue = world_.queue();
    if (queue == nullptr || queue->checker().AllDone() ||
        !(world_.queue_was_lost() || world_.item_is_nobodys() ||
          queue->checker().has_passes())) {
      return;
    }
    for (const auto& reader : world_.readers()) {
      if (reader->is_over()) {
        Do(EventKind::kAgain, reader->task());
      }
    }
  }

  void End() {
    world_.End();
    const auto is_over = [&] {
      if (!world_.chief().is_over()) {
        Do(EventKind::kFinish);  // unless it does so already, or cannot
      }
      bool is_over = world_.chief().is_over() && world_.calls().empty();
      for (const auto& worker : world_.workers()) {
        is_over &= worker->is_over() || !worker->is_up();
      }
      return is_over;
    };
    GoOnUntil(is_over, BoundOfReading());
    if (!world_.chief().has_finished()) {
      Stick("the chief cannot end training");
    } else if (is_good() && !is_over()) {
      Stick("somebody waits after the end of training");
    }
    for (const auto& server : world_.servers()) {
      if (!server->Leftovers().empty()) {
        Stick(server->Leftovers());
      }
    }
  }

  // Those who train go on, or those who read, once there is what they read
  // from.
  void GoOnUntil(const std::function<bool()>& is_done, Time bound,
                 bool reading = false) {
    const Time end = world_.now() + bound;
    while (is_good() && !is_done() && world_.now() < end) {
      const bool only_reads = reading && world_.queue() != nullptr;
      bool has_moved = only_reads ? GoReaders() : GoTrainers();
      // Late, so that they come to what has gone on.
      if (!has_moved || ++num_turns_ % 7 == 0) {
        has_moved |= is_good() && BringStrays();
      }
      if (!has_moved && is_good()) {
        Wait(only_reads);
        if (only_reads && is_good()) {
          BeginPasses();
        }
      }
    }
  }

  bool GoChief() { return is_good() && Do(EventKind::kGo); }

  bool GoTrainers() {
    bool has_moved = GoChief();
    for (const auto& worker : world_.workers()) {
      has_moved |= is_good() && Do(EventKind::kGo, worker->task());
    }
    return has_moved;
  }

  bool GoReaders() {
    bool has_moved = false;
    for (const auto& reader : world_.readers()) {
      has_moved |= is_good() && Do(EventKind::kGo, reader->task());
    }
    return has_moved;
  }

  // Calls that nobody waits for any more.
  bool BringStrays() {
    for (const auto& call : world_.calls()) {
      if (call->state != Call::State::kWaits) {
        Event event;
        event.kind = call->state == Call::State::kOnItsWay ? EventKind::kDeliver
                     : call->state == Call::State::kRuns   ? EventKind::kRun
                                                           : EventKind::kReturn;
        event.task = call->from;
        event.life = call->from_life;
        event.call = call->kind;
        event.variable = call->variable;
        event.other = call->to;
        // An op may have to wait for others.
        if (apply_(event)) {
          return true;
        }
      }
    }
    return false;
  }

  // Until a lease may end, or somebody has rested.
  void Wait(bool only_reads) {
    bool somebody_rests = false;
    const auto rests = [](const Actor& actor) {
      return actor.is_up() && !actor.is_over() && actor.pending().empty();
    };
    if (only_reads) {
      for (const auto& reader : world_.readers()) {
        somebody_rests |= rests(*reader);
      }
    } else {
      somebody_rests |= rests(world_.chief());
      for (const auto& worker : world_.workers()) {
        somebody_rests |= rests(*worker);
      }
    }
    const Time second = std::chrono::seconds(1);
    Time next = world_.next_poll();
    if (somebody_rests || next == Time::max()) {
      next = std::min(next, world_.now() + second);
    }
    const int64_t milliseconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(next -
                                                              world_.now())
            .count();
    Do(EventKind::kPass, {}, {}, std::max<int64_t>(milliseconds, 1));
  }

  void Stick(const std::string& what) {
    world_.Fail("stuck: " + what +
                (num_events_ < kMostEvents ? "" : ", and goes on for ever"));
  }

  World& world_;
  const std::function<bool(const Event&)>& apply_;
  int num_events_ = 0;
  int num_turns_ = 0;
};

}  // namespace

void Settle(World* world, const std::function<bool(const Event&)>& apply) {
  if (world->failure().empty()) {
    Settler(world, apply).Run();
  }
}

}  // namespace tf_syncrep::simulator
