#include "tests/simulator/shrink.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace tf_syncrep::simulator {
namespace {

class Shrinker {
 public:
  Shrinker(const Outcome& failed, int max_runs)
      : best_(failed), runs_left_(max_runs) {
    // Events after the schedule may be part of it, and can then be removed.
    Try(failed.all);
  }

  Outcome Run() {
    int64_t before = 0;
    do {
      before = runs_with_success_;
      ShrinkSetup();
      ShrinkEvents();
      ShrinkValues();
    } while (runs_with_success_ > before && runs_left_ > 0);
    return best_;
  }

 private:
  static auto Size(const Outcome& outcome) {
    const Setup& setup = outcome.all.setup;
    const int64_t cluster =
        setup.num_workers + setup.num_servers + setup.num_variables +
        setup.quorum + setup.total + (setup.sparse ? 1 : 0) +
        (setup.terms ? 1 : 0) + (setup.heartbeats ? 1 : 0) +
        (setup.timeout > 0 ? 1 : 0) + (setup.updater_lease > 0 ? 1 : 0) +
        (setup.strict ? 1 : 0) + (setup.gathers ? 1 : 0) +
        (setup.chief_trains ? 1 : 0) + (setup.shuffle ? 1 : 0) +
        setup.num_readers * (1 + setup.num_items + setup.num_epochs) +
        (setup.least_recent ? 1 : 0) +
        setup.num_trainers * (1 + setup.max_rows + setup.num_keys +
                              setup.min_count + setup.unused_for);
    return std::pair(NumEvents(outcome), cluster);
  }

  bool Try(const Schedule& schedule) {
    if (runs_left_ <= 0) {
      return false;
    }
    --runs_left_;
    Outcome outcome = RunSchedule(schedule);
    if (outcome.failure.empty() || outcome.is_stuck() != best_.is_stuck() ||
        Size(outcome) >= Size(best_)) {
      return false;
    }
    best_ = std::move(outcome);
    ++runs_with_success_;
    return true;
  }

  // The events that are worth removing: the events after these are settled
  // anew.
  const Schedule& Present() const {
    return best_.is_stuck() ? best_.scheduled : best_.all;
  }

  void ShrinkEvents() {
    for (size_t size = std::max<size_t>(Present().events.size() / 2, 1);;
         size /= 2) {
      for (size_t begin = 0; begin < Present().events.size();) {
        Schedule smaller = Present();
        const auto first = smaller.events.begin() + begin;
        const size_t end = std::min(begin + size, smaller.events.size());
        smaller.events.erase(first, smaller.events.begin() + end);
        if (!Try(smaller)) {
          begin += size;
        }
      }
      if (size <= 1) {
        return;
      }
    }
  }

  template <typename Change>
  bool TrySetup(const Change& change) {
    Schedule smaller = Present();
    change(&smaller.setup);
    return Try(smaller);
  }

  void ShrinkSetup() {
    using Field = int64_t Setup::*;
    for (const Field field :
         {&Setup::num_workers, &Setup::num_servers, &Setup::num_variables,
          &Setup::quorum, &Setup::total, &Setup::num_readers, &Setup::num_items,
          &Setup::num_epochs, &Setup::num_trainers, &Setup::max_rows,
          &Setup::num_keys, &Setup::min_count, &Setup::unused_for}) {
      while (Present().setup.*field > 1 &&
             TrySetup([field](Setup* setup) { setup->*field -= 1; })) {
      }
    }
    using Flag = bool Setup::*;
    for (const Flag flag :
         {&Setup::sparse, &Setup::terms, &Setup::heartbeats, &Setup::strict,
          &Setup::gathers, &Setup::chief_trains, &Setup::shuffle,
          &Setup::least_recent}) {
      if (Present().setup.*flag) {
        TrySetup([flag](Setup* setup) { setup->*flag = false; });
      }
    }
    if (Present().setup.num_readers > 0) {
      TrySetup([](Setup* setup) { setup->num_readers = 0; });
    }
    if (Present().setup.num_trainers > 0) {
      TrySetup([](Setup* setup) { setup->num_trainers = 0; });
    }
    if (Present().setup.updater_lease > 0) {
      TrySetup([](Setup* setup) { setup->updater_lease = 0; });
    }
    if (Present().setup.timeout > 0 && Present().setup.updater_lease == 0) {
      TrySetup([](Setup* setup) { setup->timeout = 0; });
    }
  }

  // Replaces several messages by one step if that is enough.
  void ShrinkValues() {
    for (size_t i = 0; i < Present().events.size(); ++i) {
      Schedule simpler = Present();
      Event& event = simpler.events[i];
      if (event.kind != EventKind::kSend && event.kind != EventKind::kDeliver &&
          event.kind != EventKind::kReturn && event.kind != EventKind::kRun) {
        continue;
      }
      Event go;
      go.task = event.task;
      event = go;
      Try(simpler);
    }
  }

  Outcome best_;
  int runs_left_;
  int64_t runs_with_success_ = 0;
};

}  // namespace

int64_t NumEvents(const Outcome& outcome) {
  return static_cast<int64_t>(outcome.is_stuck()
                                  ? outcome.scheduled.events.size()
                                  : outcome.all.events.size());
}

Outcome Shrink(const Outcome& failed, int max_runs) {
  return Shrinker(failed, max_runs).Run();
}

}  // namespace tf_syncrep::simulator
