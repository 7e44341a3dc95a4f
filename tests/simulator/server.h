// A parameter server: variables, their accumulators, and on the first the gate.

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
#include "tf_syncrep/cc/lib/accumulator.h"

namespace tf_syncrep::simulator {

class Server {
 public:
  Server(int number, const Setup& setup, SyncGate::Clock clock, Twin* twin,
         WatchedGate::Log log);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int life() const { return life_; }
  bool is_up() const { return is_up_; }
  bool has_lost_variables() const;
  WatchedGate* gate() const { return gate_.get(); }

  // The process ends. What waits at its gate comes back, and means nothing.
  void Crash();
  void Restart();

  // Does what the call asks for. It comes back, now or later.
  void Handle(Call* call);

  // After the end of a training: what is not as it should be, or "".
  std::string Leftovers() const;

  const std::string& error() const { return error_; }

 private:
  struct Variable {
    bool sparse = false;
    Weights weights;  // empty: not initialized
    std::unique_ptr<Accumulator> accumulator;
  };

  void Make();
  void MakeGate();
  void Reset(Call* call);
  void Push(const Call& call, Variable* variable);
  void Take(Call* call, Variable* variable);
  void CheckCounts(const Variable& variable);

  const int number_;
  const Setup setup_;
  const SyncGate::Clock clock_;
  Twin* const twin_;
  const WatchedGate::Log log_;
  int life_ = 1;
  bool is_up_ = true;
  int64_t step_ = 0;
  std::map<int, Variable> variables_;  // by their number among all
  std::unique_ptr<WatchedGate> gate_;
  std::string error_;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_SERVER_H_
