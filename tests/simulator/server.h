// A parameter server: it has variables and their accumulators; the first server
// also has the gate, and the last the work queue and the table that grows.

#ifndef TESTS_SIMULATOR_SERVER_H_
#define TESTS_SIMULATOR_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulator/call.h"
#include "tests/simulator/schedule.h"
#include "tests/simulator/twin.h"
#include "tests/simulator/watched_gate.h"
#include "tests/simulator/watched_queue.h"
#include "tests/simulator/watched_table.h"
#include "tf_syncrep/cc/lib/accumulator.h"

namespace tf_syncrep::simulator {

class Server {
 public:
  Server(int number, const Setup& setup, SyncGate::Clock clock, Twin* twin,
         WatchedGate::Log log, WatchedQueue::Log queue_log,
         WatchedTable::Log table_log);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int life() const { return life_; }
  bool is_up() const { return is_up_; }
  bool has_lost_variables() const;
  WatchedGate* gate() const { return gate_.get(); }
  // Null before the chief has made it, or if there is none.
  WatchedQueue* queue() const { return queue_.get(); }
  // The same.
  WatchedTable* table() const { return table_.get(); }

  // Ends the process. Waits at its gate or queue end without any effect.
  void Crash();
  void Restart();

  // Executes the call, which comes back now or later.
  void Handle(Call* call);
  // Has the op of a call that runs take a step. False if it has to wait.
  bool Run(Call* call);
  // Cancels the step that waits or runs.
  void Cancel(Call* call);
  // Returns when to call it again, or Time::max() for never.
  SyncGate::Time Poll();

  // Returns what is wrong after the end of a training, or "".
  std::string Leftovers();

  // Returns what is wrong, or "".
  std::string error() const;

 private:
  struct Variable {
    bool sparse = false;
    Weights weights;  // empty if not initialized
    std::unique_ptr<Accumulator> accumulator;
  };

  void Make();
  void MakeGate();
  void MakeQueue();
  void ResetTable(const Call& call);
  bool has_queue() const {
    return setup_.num_readers > 0 && number_ == setup_.num_servers - 1;
  }
  bool has_table() const {
    return setup_.num_trainers > 0 && number_ == setup_.num_servers - 1;
  }
  void Reset(Call* call);
  void Push(const Call& call, Variable* variable);
  void Take(Call* call, Variable* variable);
  void CheckCounts(const Variable& variable);

  const int number_;
  const Setup setup_;
  const SyncGate::Clock clock_;
  Twin* const twin_;
  const WatchedGate::Log log_;
  const WatchedQueue::Log queue_log_;
  const WatchedTable::Log table_log_;
  int life_ = 1;
  bool is_up_ = true;
  int64_t step_ = 0;
  std::map<int, Variable> variables_;  // by their numbers in the cluster
  std::unique_ptr<WatchedGate> gate_;
  std::unique_ptr<WatchedQueue> queue_;
  std::unique_ptr<WatchedTable> table_;
  std::string error_;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_SERVER_H_
