// A cluster in virtual time: tasks, and the calls between them.

#ifndef TESTS_SIMULATOR_WORLD_H_
#define TESTS_SIMULATOR_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulator/call.h"
#include "tests/simulator/chief.h"
#include "tests/simulator/reader.h"
#include "tests/simulator/schedule.h"
#include "tests/simulator/server.h"
#include "tests/simulator/trainer.h"
#include "tests/simulator/twin.h"
#include "tests/simulator/worker.h"

namespace tf_syncrep::simulator {

// Everything happens in Apply(): there is one thread, no other clock, and no
// chance.
class World {
 public:
  using Time = SyncGate::Time;
  // Gets a line for each event, and for each of its effects.
  using Trace = std::function<void(const std::string&)>;

  World(const Setup& setup, Trace trace);

  // Returns whether the event was possible; otherwise nothing happens.
  bool Apply(const Event& event);

  // How much virtual time passes with each event, so that no two are at the
  // same time.
  static constexpr Time kTick = std::chrono::milliseconds(1);

  const std::string& failure() const { return failure_; }
  void Fail(const std::string& failure);

  // --- For the code that chooses events ---

  const Setup& setup() const { return cluster_.setup; }
  Time now() const { return now_; }
  const std::vector<std::unique_ptr<Call>>& calls() const { return calls_; }
  Chief& chief() { return chief_; }
  std::vector<std::unique_ptr<Worker>>& workers() { return workers_; }
  std::vector<std::unique_ptr<Server>>& servers() { return servers_; }
  std::vector<std::unique_ptr<Reader>>& readers() { return readers_; }
  // Null if there is none at present.
  WatchedQueue* queue() const { return servers_.back()->queue(); }
  bool queue_was_lost() const { return servers_.back()->life() > 1; }
  // Whether a question whose reader had stopped waiting was given an item.
  bool item_is_nobodys() const { return item_is_nobodys_; }
  bool IsCut(const Task& task, const Task& server) const;
  const std::vector<std::pair<Task, Task>>& cuts() const { return cuts_; }
  const Twin& twin() const { return twin_; }
  // When the gate has to be polled again, or Time::max() for never.
  Time next_poll() const { return next_poll_; }
  // A number that distinguishes this run from others.
  uint64_t digest() const { return digest_; }
  void End() { cluster_.is_ending = true; }
  // Returns what is wrong after the last item, or "".
  std::string CheckReading() const;

 private:
  Actor* ActorOf(const Task& task);
  std::vector<Actor*> ActorsIn(const Task& process);
  Call* Send(Call call);
  Call* Find(const Event& event, Call::State state);
  bool Go(Actor* actor);
  // Moves a call as far as possible without waiting; returns whether it moved.
  bool Bring(Call* call);
  bool Deliver(Call* call);
  bool Run(Call* call);
  void CheckFailedTake(const Call& call);
  bool Return(Call* call);
  void Drop(Call* call);
  bool Break(const Event& event);
  bool Crash(const Task& task);
  bool Restart(const Task& task);
  void LoseCallsTo(const Server& server, int number);
  bool Pass(int64_t milliseconds);
  void Poll();
  void EndCallsOf(const Actor& actor);
  bool CancelWait(Call* call);
  bool ApplyToChief(const Event& event);
  bool ApplyToWorker(const Event& event);
  bool ApplyToReader(const Event& event);
  bool ApplyToLink(const Event& event);
  bool has_queue() const { return cluster_.setup.num_readers > 0; }
  bool has_table() const { return cluster_.setup.num_trainers > 0; }
  void CheckErrors();
  void Digest(const Event& event);
  void Say(const std::string& what);

  const Trace trace_;
  std::string event_;  // the present event, if it was not traced yet
  Time now_ = kTick;
  Time next_poll_{0};
  std::string failure_;
  bool item_is_nobodys_ = false;
  uint64_t digest_ = 0xcbf29ce484222325;
  int64_t num_calls_ = 0;
  int64_t num_contributions_ = 0;
  Cluster cluster_;
  Twin twin_;
  Chief chief_;
  std::vector<std::unique_ptr<Call>> calls_;  // in their order
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Reader>> readers_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::pair<Task, Task>> cuts_;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_WORLD_H_
