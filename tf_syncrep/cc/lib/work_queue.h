// WorkQueue: which reader reads which item of the data, and which items have
// been read.

#ifndef TF_SYNCREP_CC_LIB_WORK_QUEUE_H_
#define TF_SYNCREP_CC_LIB_WORK_QUEUE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/gate/sync_gate.h"
#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

struct WorkQueueOptions {
  int64_t num_items = 1;
  // How often each item is read; 0 means without end.
  int64_t num_epochs = 1;
  bool shuffle = false;
  uint64_t seed = 0;
  // How long a reader may take for an item.
  std::chrono::nanoseconds lease = std::chrono::seconds(600);
  // Tickets are numbered from this one on. Readers may outlive a queue that is
  // lost with its task, and then ask the next queue of that name. If the first
  // ticket is taken from a clock, tickets of the two queues differ.
  int64_t first_ticket = 1;
  // Tells the items from others, if there are equally many.
  int64_t fingerprint = 0;
};

// One of a worker's iterators, in one life of the worker.
struct WorkReader {
  GateWorker worker;
  uint64_t stream;
};

// An item of an epoch; both count from 0.
struct WorkItem {
  int64_t epoch = 0;
  int64_t item = 0;

  bool operator<(const WorkItem& other) const {
    return std::pair(epoch, item) < std::pair(other.epoch, other.item);
  }
};

// At any time
//   handed_out = done + in_flight + given_back,
//   given_back = repeated + waiting_items.
// Both sides run over the queue's whole life, checkpoints included.
struct WorkQueueCounters {
  int64_t epoch = 0;       // of the item that comes next
  int64_t position = 0;    // how many of that epoch were handed out
  int64_t handed_out = 0;  // items handed out, repetitions included
  int64_t done = 0;        // items that were read to their ends
  int64_t given_back = 0;  // items that a reader did not finish
  int64_t repeated = 0;    // of these, items that were handed out again
  int64_t late = 0;        // ends of items that had been given back
  int64_t limit = -1;      // the last epoch to hand out; -1: all
};

struct WorkQueueStats : WorkQueueCounters {
  int64_t in_flight = 0;      // items that are being read
  int64_t waiting_items = 0;  // given back, and not handed out again
  int64_t waiting = 0;        // readers that wait for others' items
};

// What a checkpoint holds. Items that were being read are given back.
struct WorkQueueState : WorkQueueCounters {
  std::vector<WorkItem> waiting_items;  // ascending
};

// WorkQueue hands out the items of a data set, such as files or ranges of them,
// each once an epoch, to any reader that asks. An item is done when its reader
// asks for the next one. If a reader is dead, because its worker was restarted
// or its lease has ended, its item is handed out again, as a whole.
//
// Nobody waits for a slow reader, except at the end of the last epoch: there
// the items that others still read may come back. The last of a worker's
// readers waits for them, because no other reader on that worker can be waiting
// for it. Items that come back in earlier epochs are the next to be handed out.
//
// A limit stops readers at an epoch's end. Whoever sets it can act once all
// readers have got there, and then raise it. Nobody waits at a limit.
//
// As in SyncGate, all methods are thread-safe and none blocks. A method that
// has to wait takes a callback, which is called exactly once and without any
// lock held. A wait ends when its condition holds, by Cancel(), Shutdown(),
// another Take() of the same reader or, if a lease ends, by Poll(), which
// somebody must call. Nothing may wait when a queue is destroyed.
class WorkQueue {
 public:
  using Time = std::chrono::nanoseconds;
  // The time on a clock that never goes back.
  using Clock = std::function<Time()>;
  using WaitId = int64_t;
  static constexpr int64_t kNoTicket = 0;
  static constexpr int64_t kNoLimit = -1;

  struct Grant {
    int64_t ticket = kNoTicket;  // differs from that of all other grants
    WorkItem item;
  };
  using TakeCallback = std::function<void(const GateStatus&, const Grant&)>;

  WorkQueue(const WorkQueueOptions& options, Clock clock);
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // InvalidArgument unless there are items and the lease is positive.
  static GateStatus CheckOptions(const WorkQueueOptions& options);

  // Hands out the next item. `last` is the ticket of the item that the reader
  // has read to its end. If the reader holds another item, the grant of which
  // was lost, it gets that item again. A new reader passes kNoTicket: what an
  // earlier reader of its stream holds is given back. OutOfRange at the end of
  // all epochs, or at the limit; Aborted for a life of a worker that is over.
  WaitId Take(const WorkReader& reader, int64_t last, TakeCallback done);

  // Hands out no more items to the present life of a worker: its readers come
  // to an end when they have read those that they hold. If `gives_back`, the
  // worker is gone, and what it holds is given back at once. Holds until the
  // limit is set, or a state restored.
  void Leave(const std::string& device, bool gives_back);

  // Hands out no items of epochs after `epoch` until the limit changes;
  // kNoLimit, as at first, sets no limit.
  void SetLimit(int64_t epoch);

  WorkQueueState Save() const;

  // Continues from `state`. Readers, and what they read, are forgotten; waits
  // go on. InvalidArgument, with no effect, for a state that was saved with
  // other options.
  GateStatus Restore(const WorkQueueState& state);

  // The items that readers have, and then those that each has read to its end
  // last. If reading fails, the reason is likely in one of them.
  std::vector<int64_t> Recent() const;

  // Ends the wait with a Cancelled status, and returns whether it still waited.
  bool Cancel(WaitId id);

  // The queue will not be used any more: ends all waits, for ever.
  void Shutdown();

  WorkQueueStats Stats() const;

  // Gives back items whose lease has ended, and returns when to call it again:
  // no lease ends earlier, unless it begins meanwhile.
  Time Poll();

 private:
  using ReaderKey = std::pair<std::string, uint64_t>;  // device, stream

  struct Held {
    Grant grant;
    Time since{0};
  };

  struct Wait {
    ReaderKey reader;
    TakeCallback done;
  };

  struct Life {
    uint64_t incarnation = 0;
    std::set<uint64_t> over;
    bool is_leaving = false;
  };

  // Callbacks to be called once the lock is released.
  using Calls = std::vector<std::function<void()>>;

  bool BeginLife(const GateWorker& worker, Calls* calls)
      TF_SYNCREP_REQUIRES(mu_);
  void GiveBackAll(const std::string& device) TF_SYNCREP_REQUIRES(mu_);
  void GiveBackOne(std::map<ReaderKey, Held>::iterator held)
      TF_SYNCREP_REQUIRES(mu_);
  void End(std::map<ReaderKey, Held>::iterator held) TF_SYNCREP_REQUIRES(mu_);
  bool HasNext() const TF_SYNCREP_REQUIRES(mu_);
  bool IsLeaving(const std::string& device) const TF_SYNCREP_REQUIRES(mu_);
  void ForgetWhoLeaves() TF_SYNCREP_REQUIRES(mu_);
  Grant HandOut(const ReaderKey& reader) TF_SYNCREP_REQUIRES(mu_);
  bool MayComeBack(const std::string& device) const TF_SYNCREP_REQUIRES(mu_);
  void EndWait(std::map<WaitId, Wait>::iterator wait, GateStatus status,
               const Grant& grant, Calls* calls) TF_SYNCREP_REQUIRES(mu_);
  void Serve(Calls* calls) TF_SYNCREP_REQUIRES(mu_);
  WorkItem Next() const TF_SYNCREP_REQUIRES(mu_);

  WorkQueueCounters Counters() const TF_SYNCREP_REQUIRES(mu_);

  static void Make(const Calls& calls);

  const WorkQueueOptions options_;
  const Clock clock_;
  mutable Mutex mu_;
  bool is_shut_down_ TF_SYNCREP_GUARDED_BY(mu_) = false;
  int64_t epoch_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  int64_t position_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  int64_t limit_ TF_SYNCREP_GUARDED_BY(mu_) = kNoLimit;
  int64_t last_ticket_ TF_SYNCREP_GUARDED_BY(mu_);
  WaitId last_wait_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  std::map<std::string, Life> lives_ TF_SYNCREP_GUARDED_BY(mu_);
  std::map<ReaderKey, Held> held_ TF_SYNCREP_GUARDED_BY(mu_);
  std::map<ReaderKey, int64_t> last_ended_ TF_SYNCREP_GUARDED_BY(mu_);  // items
  std::set<WorkItem> given_back_ TF_SYNCREP_GUARDED_BY(mu_);
  std::map<WaitId, Wait> waits_ TF_SYNCREP_GUARDED_BY(mu_);
  // All but the epoch, the position and the limit.
  WorkQueueCounters counts_ TF_SYNCREP_GUARDED_BY(mu_);
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_WORK_QUEUE_H_
