// Follows a work queue with a ledger of its own, by the questions and answers
// of readers.

#ifndef TESTS_SIMULATOR_QUEUE_CHECKER_H_
#define TESTS_SIMULATOR_QUEUE_CHECKER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tf_syncrep/cc/lib/work_queue.h"

namespace tf_syncrep::simulator {

// Knows when an item may be handed out again, and that nobody waits without a
// reason. It takes from what a reader says to have read that an item is done,
// not only from tickets.
class QueueChecker {
 public:
  using Time = WorkQueue::Time;

  // The part of a checkpoint that belongs to the checker.
  struct Saved {
    WorkQueueStats counts;
    std::set<int64_t> begun;  // items of the epoch that were handed out
    std::set<WorkItem> done;
    std::set<WorkItem> given_back;
  };

  // A reader asks for an item.
  struct Question {
    WorkReader reader;
    int64_t last = WorkQueue::kNoTicket;
    WorkItem read;  // if there is a last item: the one that was read to its end
  };

  explicit QueueChecker(const WorkQueueOptions& options) : options_(options) {}

  void Ask(int64_t wait, const Question& question, Time now);
  void Cancel(int64_t wait);  // if it still waits
  void Answer(int64_t wait, const GateStatus& status,
              const WorkQueue::Grant& grant, Time now);
  void SetLimit(int64_t epoch);
  void EndLeases(Time now);
  void Shutdown() { is_shut_down_ = true; }
  Saved Save() const;
  void Restore(const Saved& saved);
  // To be called after each of these, and its answers.
  void Check(const WorkQueueStats& stats);

  // Whether all items of all epochs, up to the limit if there is one, were
  // read.
  bool AllDone() const;
  // Whether no reader died, was silent for long, or began anew with an item.
  bool is_undisturbed() const { return counts_.given_back == 0 && !restored_; }
  // Readers that have heard of the end may not have heard of the last one.
  bool has_passes() const { return restored_ || was_limited_; }

  const std::string& error() const { return error_; }

 private:
  using ReaderKey = std::pair<std::string, uint64_t>;  // device, stream
  enum class End : uint8_t { kAny, kAborted, kSameItem, kCancelled };

  struct Held {
    WorkQueue::Grant grant;
    Time since{0};
  };
  struct Wait {
    ReaderKey reader;
    End end = End::kAny;
  };
  struct Life {
    uint64_t incarnation = 0;
    std::set<uint64_t> over;
  };

  bool BeginLife(const GateWorker& worker, int64_t wait);
  void GiveBack(std::map<ReaderKey, Held>::iterator held);
  void TakeGrant(const ReaderKey& reader, const WorkQueue::Grant& grant,
                 Time now);
  bool HasNext() const;
  bool MayComeBack(const std::string& device) const;
  bool Expect(bool holds, const std::string& rule);

  const WorkQueueOptions options_;
  WorkQueueStats counts_;  // the expected counters, without limit and waiting
  std::set<int64_t> begun_;
  std::set<WorkItem> done_;
  std::set<WorkItem> given_back_;
  std::map<ReaderKey, Held> held_;
  std::map<int64_t, Wait> waits_;
  std::map<std::string, Life> lives_;
  int64_t last_ticket_ = 0;
  bool is_shut_down_ = false;
  bool restored_ = false;
  bool was_limited_ = false;
  std::string error_;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_QUEUE_CHECKER_H_
