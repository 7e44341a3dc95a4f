// A task that makes calls: a worker, one of its readers or trainers, or the
// chief.

#ifndef TESTS_SIMULATOR_ACTOR_H_
#define TESTS_SIMULATOR_ACTOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulator/call.h"
#include "tests/simulator/schedule.h"

namespace tf_syncrep::simulator {

// The knowledge that tasks have of the cluster, and the way to make a call.
struct Cluster {
  Setup setup;
  // Sends a call, and keeps it until it has come back.
  std::function<Call*(Call)> send;
  std::function<SyncGate::Time()> now;
  std::function<bool()> has_lost_variables;
  std::function<int64_t()> next_contribution;
  // Reports that something is wrong.
  std::function<void(const std::string&)> fail;
  // For the replica in the chief's process, which shares its session: these
  // tell whether the session has begun and whether it has failed, begin another
  // session, and note that there will be no other.
  std::function<bool()> session_has_begun;
  std::function<bool()> session_has_failed;
  std::function<void()> begin_session;
  std::function<void()> end_session;
  std::function<bool()> replica_is_over;
  // Whether nobody begins another training.
  bool is_ending = false;
  // The last checkpoint of the work queue; null if there is none.
  std::shared_ptr<const SavedQueue> saved_queue = nullptr;
  // The last checkpoint of the table that grows; null if there is none.
  std::shared_ptr<const SavedTable> saved_table = nullptr;
  // How often readers have read an item to its end.
  std::map<WorkItem, int64_t> num_read = {};

  Task ServerOf(int variable) const {
    return {Task::Job::kServer, variable % static_cast<int>(setup.num_servers)};
  }
  // Whether a replica is the one in the chief's process.
  bool IsChiefsReplica(const Task& task) const {
    return task.job == Task::Job::kWorker &&
           setup.ProcessOf(task).job == Task::Job::kChief;
  }
  Task QueueTask() const {
    return {Task::Job::kServer, static_cast<int>(setup.num_servers) - 1};
  }
  Task TableTask() const { return QueueTask(); }
};

// One thread of control in one process, through all of its lives: it makes
// calls, waits for all of them, and goes on.
class Actor {
 public:
  explicit Actor(Task task, Cluster* cluster)
      : task_(task), cluster_(cluster) {}
  virtual ~Actor() = default;

  Task task() const { return task_; }
  int life() const { return life_; }
  bool is_up() const { return is_up_; }
  virtual bool is_over() const = 0;

  // The calls that it waits for.
  const std::vector<Call*>& pending() const { return pending_; }

  void Crash();
  void Restart();

  // Makes its next calls. False if it has none to make now.
  bool Start();

  // One of its calls has come back. It may belong to an earlier step, or life.
  void Answer(Call* call);
  // The same with a broken connection: the actor gets an error.
  void Lose(Call* call);

 protected:
  // After an error nobody tries again at once.
  static constexpr SyncGate::Time kRest = std::chrono::seconds(5);

  Call NewCall(CallKind kind, Task to, int variable = -1) const;
  void Send(Call call) { pending_.push_back(cluster_->send(std::move(call))); }
  // Drops its pending calls, which do not matter any more.
  void Forget() { pending_.clear(); }
  void Rest() { rests_until_ = cluster_->now() + kRest; }
  Cluster& cluster() const { return *cluster_; }
  // The first error among the calls that came back last; null if there is none.
  const GateStatus* error() const { return error_.ok() ? nullptr : &error_; }

  static constexpr Task kGateTask = {Task::Job::kServer, 0};

 private:
  bool Remove(Call* call);
  virtual void Begin() = 0;  // a life
  virtual void Next() = 0;
  virtual void Take(Call* call) = 0;       // an awaited answer
  virtual void GoOn() = 0;                 // all answers have come
  virtual void TakeBeside(const Call&) {}  // an answer that is not awaited

  const Task task_;
  Cluster* const cluster_;
  int life_ = 1;
  bool is_up_ = true;
  SyncGate::Time rests_until_{0};
  std::vector<Call*> pending_;
  GateStatus error_;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_ACTOR_H_
