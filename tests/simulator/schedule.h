// A schedule: a small cluster, and the events in it, one after the other.
//
// A seed stands for a schedule, which can be replayed and shrunk.

#ifndef TESTS_SIMULATOR_SCHEDULE_H_
#define TESTS_SIMULATOR_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tf_syncrep::simulator {

// A task of the cluster: the chief, whose process has the updater; a parameter
// server (the first has the gate, the last the work queue and the table that
// grows); a worker; or a reader or a trainer of the table, each of which is
// part of a worker's process.
struct Task {
  enum class Job : uint8_t { kChief, kServer, kWorker, kReader, kTrainer };

  Job job = Job::kChief;
  int number = 0;

  bool operator==(const Task& other) const {
    return job == other.job && number == other.number;
  }
};

// The replica that may be in the chief's process.
constexpr Task kChiefsReplica = {Task::Job::kWorker, 0};

// The calls that a task can make to a parameter server.
enum class CallKind : uint8_t {
  // Of a worker.
  kAcquire,
  kRead,
  kAdmit,
  kPush,
  kCommit,
  kAbort,
  kLeave,
  // Of the chief.
  kReset,  // empties accumulators; variables that are lost are restored
  kOpen,
  kWaitQuorum,
  kFlush,
  kTake,  // the mean of a round, and its application to the variable
  kAdvance,
  kDrain,
  kCancelUpdater,
  kConfigure,
  kAddPasses,
  kClose,
  kFail,
  kSave,  // the state of the work queue
  kRestore,
  kLimit,
  // Of a reader.
  kItem,
  // Of the chief, about the table that grows.
  kMaintain,
  kSaveTable,
  kLoadTable,
  // Of a trainer.
  kFind,
  kGradient,
};

enum class EventKind : uint8_t {
  // The task goes on: an awaited answer comes back, or it makes its next calls,
  // which are answered at once if possible.
  kGo,
  kSend,       // it makes its next calls, which are under way from then on
  kDeliver,    // one of its calls arrives
  kReturn,     // the answer to one of its calls arrives
  kPass,       // `value` milliseconds go by
  kCrash,      // the task's process ends
  kRestart,    // and begins anew
  kCut,        // the tasks `task` and `other` cannot reach each other
  kHeal,       // they can again
  kBreak,      // on a link that is cut: the task's calls over it fail
  kAbort,      // the worker gives its step up, and says so
  kAgain,      // the worker begins its step anew, whatever it was about, or
               // the reader its dataset
  kCancel,     // the step in which the worker, or reader, waits is cancelled
  kReject,     // the worker's gradient turns out to be unfit
  kLeave,      // the worker ends in an orderly way
  kFinish,     // the chief ends training: drain, flush, close
  kFlush,      // the chief applies a round that is not full
  kGiveUp,     // the chief does not apply what it has flushed
  kHeartbeat,  // the chief only gives a sign of life: it is not ready to update
  kClose,      // the chief closes the gate
  kFail,       // the chief fails it
  kConfigure,  // the chief changes quorum and total: `value` and `other.number`
  kPasses,     // the chief lays out `value` passes
  kDelete,     // the gate is deleted while its server lives on
  kFailUpdate,  // the chief's update fails
  kSave,        // the chief saves the work queue
  kRestore,     // the queue continues from where it was saved
  kLimit,       // readers stop after epoch `value`, or read on if it is -1
  kRun,         // the op of one of the task's calls takes a step at its server
  kMaintain,    // the chief maintains the table that grows
  kSaveTable,   // the chief saves it
  kLoadTable,   // it is assigned what was saved
};

// The kind decides which fields it has.
struct Event {
  EventKind kind = EventKind::kGo;
  Task task;
  Task other;
  // Of kDeliver, kReturn and kRun: the oldest call of this kind, of this life
  // of the task, to this server.
  CallKind call = CallKind::kAcquire;
  int life = 0;
  int variable = -1;  // of calls that are about one
  int64_t value = 0;
};

// All times are in milliseconds.
struct Setup {
  int64_t num_workers = 1;
  int64_t num_servers = 1;
  int64_t num_variables = 1;
  bool sparse = false;  // the last variable gets sparse gradients
  int64_t quorum = 1;
  int64_t total = 1;
  bool strict = true;
  bool gathers = false;
  // whether workers tell the quorum and the total that they expect
  bool terms = false;
  int64_t lease = 60'000;
  int64_t start_lease = 600'000;
  int64_t updater_lease = 0;
  int64_t timeout = 0;      // of the updater's waits
  bool heartbeats = false;  // the chief begins with signs of life
  // Whether the first worker is a replica in the chief's process, as in v1.
  // They share a session, which begins anew when either of them fails.
  bool chief_trains = false;
  int64_t num_readers = 0;  // of each worker; 0 if there is no work queue
  int64_t num_items = 1;
  int64_t num_epochs = 1;  // 0 if there is no end
  bool shuffle = false;
  int64_t item_lease = 600'000;
  int64_t num_trainers =
      0;  // of each worker; 0 if there is no table that grows
  int64_t max_rows = 1;
  int64_t num_keys = 1;
  int64_t min_count = 1;
  int64_t unused_for = 0;     // updates; 0 if it does not matter
  bool least_recent = false;  // whether a full table evicts these rows

  // The task in whose process a task is. It uses the links of that process.
  Task ProcessOf(const Task& task) const {
    const int64_t in_process = task.job == Task::Job::kReader    ? num_readers
                               : task.job == Task::Job::kTrainer ? num_trainers
                                                                 : 0;
    const Task process = in_process > 0
                             ? Task{Task::Job::kWorker,
                                    task.number / static_cast<int>(in_process)}
                             : task;
    return chief_trains && process == kChiefsReplica ? Task() : process;
  }
};

struct Schedule {
  Setup setup;
  std::vector<Event> events;
};

std::string Text(const Task& task);
std::string Text(CallKind kind);
std::string Text(const Event& event);
// One line for the setup, and one for each event.
std::string Text(const Schedule& schedule);

// Parses the output of Text(); lines that begin with # are skipped. False with
// a message for other text.
bool Parse(const std::string& text, Schedule* schedule, std::string* error);

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_SCHEDULE_H_
