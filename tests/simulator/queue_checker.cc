#include "tests/simulator/queue_checker.h"

#include <algorithm>

namespace tf_syncrep::simulator {
namespace {

std::string Text(const WorkItem& item) {
  return "item " + std::to_string(item.item) + " of epoch " +
         std::to_string(item.epoch);
}

}  // namespace

void QueueChecker::Ask(int64_t wait, const Question& question, Time now) {
  const ReaderKey key(question.reader.worker.device, question.reader.stream);
  Wait& asked = waits_[wait];
  asked.reader = key;
  if (is_shut_down_) {
    asked.end = End::kCancelled;
    return;
  }
  if (!BeginLife(question.reader.worker, wait)) {
    asked.end = End::kAborted;
    return;
  }
  for (auto& [number, other] : waits_) {
    if (other.reader == key && number != wait) {
      other.end = End::kAborted;  // it has asked again
    }
  }
  const auto held = held_.find(key);
  if (held == held_.end()) {
    counts_.late += question.last != WorkQueue::kNoTicket ? 1 : 0;
  } else if (question.last == WorkQueue::kNoTicket) {
    GiveBack(held);
  } else if (question.last != held->second.grant.ticket) {
    asked.end = End::kSameItem;
    held->second.since = now;
  } else {
    const WorkItem item = held->second.grant.item;
    const bool is_it =
        item.epoch == question.read.epoch && item.item == question.read.item;
    Expect(is_it, Text(item) + " is ended by who has read another one");
    Expect(done_.insert(item).second, Text(item) + " is read twice");
    ++counts_.done;
    held_.erase(held);
  }
}

void QueueChecker::Cancel(int64_t wait) {
  const auto found = waits_.find(wait);
  if (found != waits_.end()) {
    found->second.end = End::kCancelled;
  }
}

void QueueChecker::Answer(int64_t wait, const GateStatus& status,
                          const WorkQueue::Grant& grant, Time now) {
  const auto found = waits_.find(wait);
  if (!Expect(found != waits_.end(), "each question has one answer")) {
    return;
  }
  const Wait asked = found->second;
  waits_.erase(found);
  const bool is_cancelled = asked.end == End::kCancelled || is_shut_down_;
  switch (status.code) {
    case GateStatus::kOk:
      if (asked.end == End::kSameItem) {
        const Held& held = held_[asked.reader];
        Expect(held.grant.ticket == grant.ticket,
               "an answer that was lost is given again");
      } else if (Expect(asked.end == End::kAny,
                        "the dead are handed out nothing")) {
        TakeGrant(asked.reader, grant, now);
      }
      break;
    case GateStatus::kOutOfRange:
      Expect(asked.end == End::kAny && !HasNext(),
             "nobody is told of the end while there are items");
      Expect(!MayComeBack(asked.reader.first),
             "the last of a worker's readers waits for others' items");
      break;
    case GateStatus::kAborted:
      Expect(asked.end == End::kAborted,
             "only the dead, and who has asked again, are refused");
      break;
    default:
      Expect(status.code == GateStatus::kCancelled && is_cancelled,
             "a wait ends by itself");
      break;
  }
}

void QueueChecker::SetLimit(int64_t epoch) {
  counts_.limit = epoch;
  was_limited_ |= epoch != WorkQueue::kNoLimit;
}

void QueueChecker::EndLeases(Time now) {
  for (auto held = held_.begin(); held != held_.end();) {
    const auto next = std::next(held);
    if (held->second.since + options_.lease <= now) {
      GiveBack(held);
    }
    held = next;
  }
}

QueueChecker::Saved QueueChecker::Save() const {
  Saved saved = {counts_, begun_, done_, given_back_};
  for (const auto& [reader, held] : held_) {
    saved.given_back.insert(held.grant.item);
    ++saved.counts.given_back;
  }
  return saved;
}

void QueueChecker::Restore(const Saved& saved) {
  counts_ = saved.counts;
  begun_ = saved.begun;
  done_ = saved.done;
  given_back_ = saved.given_back;
  held_.clear();
  restored_ = true;
}

void QueueChecker::Check(const WorkQueueStats& stats) {
  Expect(stats.handed_out == stats.done + stats.in_flight + stats.given_back,
         "handed_out = done + in_flight + given_back");
  Expect(stats.given_back == stats.repeated + stats.waiting_items,
         "given_back = repeated + waiting_items");
  Expect(stats.epoch == counts_.epoch, "counters: epoch");
  Expect(stats.position == static_cast<int64_t>(begun_.size()),
         "counters: position");
  Expect(stats.handed_out == counts_.handed_out, "counters: handed out");
  Expect(stats.done == counts_.done, "counters: done");
  Expect(stats.in_flight == static_cast<int64_t>(held_.size()),
         "counters: in flight");
  Expect(stats.given_back == counts_.given_back, "counters: given back");
  Expect(stats.repeated == counts_.repeated, "counters: repeated");
  Expect(stats.waiting_items == static_cast<int64_t>(given_back_.size()),
         "counters: waiting items");
  Expect(stats.late == counts_.late, "counters: late");
  Expect(stats.waiting == static_cast<int64_t>(waits_.size()),
         "counters: waiting");
  Expect(stats.limit == counts_.limit, "counters: limit");
  for (const auto& [number, wait] : waits_) {
    Expect(wait.end == End::kAny && !is_shut_down_ && !HasNext() &&
               MayComeBack(wait.reader.first),
           "nobody waits without a reason, but a reader of " +
               wait.reader.first + " does");
  }
}

bool QueueChecker::AllDone() const {
  int64_t num_epochs = options_.num_epochs;
  if (counts_.limit != WorkQueue::kNoLimit) {
    num_epochs = num_epochs == 0 ? counts_.limit + 1
                                 : std::min(num_epochs, counts_.limit + 1);
  }
  int64_t num_done = 0;
  for (const WorkItem& item : done_) {
    num_done += item.epoch < num_epochs ? 1 : 0;
  }
  return (options_.num_epochs != 0 || counts_.limit != WorkQueue::kNoLimit) &&
         num_done == num_epochs * options_.num_items;
}

bool QueueChecker::BeginLife(const GateWorker& worker, int64_t wait) {
  Life& life = lives_[worker.device];
  if (life.over.count(worker.incarnation) > 0) {
    return false;
  }
  if (life.incarnation == worker.incarnation) {
    return true;
  }
  if (life.incarnation != 0) {
    life.over.insert(life.incarnation);
    for (auto& [number, other] : waits_) {
      if (other.reader.first == worker.device && number != wait) {
        other.end = End::kAborted;
      }
    }
    for (auto held = held_.begin(); held != held_.end();) {
      const auto next = std::next(held);
      if (held->first.first == worker.device) {
        GiveBack(held);
      }
      held = next;
    }
  }
  life.incarnation = worker.incarnation;
  return true;
}

void QueueChecker::GiveBack(std::map<ReaderKey, Held>::iterator held) {
  given_back_.insert(held->second.grant.item);
  ++counts_.given_back;
  held_.erase(held);
}

void QueueChecker::TakeGrant(const ReaderKey& reader,
                             const WorkQueue::Grant& grant, Time now) {
  const WorkItem& item = grant.item;
  Expect(held_.count(reader) == 0, "a reader has one item at a time");
  Expect(grant.ticket > last_ticket_, "each item has a ticket of its own");
  Expect(HasNext(), "nothing is handed out after the end, or the limit");
  Expect(done_.count(item) == 0, Text(item) + " is handed out, and was read");
  if (!given_back_.empty()) {
    const WorkItem& first = *given_back_.begin();
    Expect(first.epoch == item.epoch && first.item == item.item,
           "what was given back comes next, but " + Text(item) + " does");
    given_back_.erase(given_back_.begin());
    ++counts_.repeated;
  } else {
    Expect(item.epoch == counts_.epoch, "epochs come one after the other");
    Expect(item.item >= 0 && item.item < options_.num_items &&
               begun_.insert(item.item).second,
           Text(item) + " comes once an epoch");
    Expect(options_.shuffle ||
               item.item == static_cast<int64_t>(begun_.size()) - 1,
           "items are in order if they are not shuffled");
    if (static_cast<int64_t>(begun_.size()) == options_.num_items) {
      begun_.clear();
      ++counts_.epoch;
    }
  }
  last_ticket_ = grant.ticket;
  ++counts_.handed_out;
  held_[reader] = {grant, now};
}

bool QueueChecker::HasNext() const {
  const int64_t epoch =
      given_back_.empty() ? counts_.epoch : given_back_.begin()->epoch;
  const bool is_there = !given_back_.empty() || options_.num_epochs == 0 ||
                        epoch < options_.num_epochs;
  return is_there &&
         (counts_.limit == WorkQueue::kNoLimit || epoch <= counts_.limit);
}

bool QueueChecker::MayComeBack(const std::string& device) const {
  const bool is_last_epoch =
      options_.num_epochs != 0 && counts_.limit == WorkQueue::kNoLimit;
  const bool reads_on = std::any_of(
      held_.begin(), held_.end(),
      [&device](const auto& held) { return held.first.first == device; });
  return is_last_epoch && !held_.empty() && !reads_on;
}

bool QueueChecker::Expect(bool holds, const std::string& rule) {
  if (!holds && error_.empty()) {
    error_ = "work queue: " + rule;
  }
  return holds;
}

}  // namespace tf_syncrep::simulator
