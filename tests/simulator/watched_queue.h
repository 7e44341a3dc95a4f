// The real work queue on a parameter server, followed by a checker.

#ifndef TESTS_SIMULATOR_WATCHED_QUEUE_H_
#define TESTS_SIMULATOR_WATCHED_QUEUE_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "tests/simulator/call.h"
#include "tests/simulator/queue_checker.h"
#include "tf_syncrep/cc/lib/work_queue.h"

namespace tf_syncrep::simulator {

class WatchedQueue {
 public:
  using Log = std::function<void(const std::string&)>;

  // `log`, if there is one, gets questions and answers.
  WatchedQueue(const WorkQueueOptions& options, WorkQueue::Clock clock,
               Log log);

  // Executes the call, which comes back now or later.
  void Handle(Call* call);
  // Cancels a step that waits, or that has just been given an item.
  void Cancel(Call* call);
  WorkQueue::Time Poll();
  // Ends the server's process.
  void Shutdown();
  void Restore(const SavedQueue& saved);

  // Whether it has seen a question of this life of the caller.
  bool HasHeardOf(const Call& call) const;
  WorkQueueStats Stats() const { return queue_.Stats(); }
  const QueueChecker& checker() const { return checker_; }
  const std::string& error() const {
    return error_.empty() ? checker_.error() : error_;
  }

 private:
  void Take(Call* call);
  void After();

  const WorkQueue::Clock clock_;
  const Log log_;
  QueueChecker checker_;
  std::string error_;
  std::set<std::pair<std::string, uint64_t>> have_asked_;
  WorkQueue queue_;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_WATCHED_QUEUE_H_
