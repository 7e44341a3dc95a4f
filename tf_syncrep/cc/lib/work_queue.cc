#include "tf_syncrep/cc/lib/work_queue.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "tf_syncrep/cc/lib/item_order.h"

namespace tf_syncrep {

WorkQueue::WorkQueue(const WorkQueueOptions& options, Clock clock)
    : options_(options),
      clock_(std::move(clock)),
      last_ticket_(options.first_ticket - 1) {}

GateStatus WorkQueue::CheckOptions(const WorkQueueOptions& options) {
  const auto invalid = [](std::string message) {
    return GateStatus{GateStatus::kInvalidArgument, std::move(message)};
  };
  if (options.num_items < 1) {
    return invalid("num_items must be at least 1. Received: " +
                   std::to_string(options.num_items));
  }
  if (options.num_epochs < 0) {
    return invalid("num_epochs must not be negative. Received: " +
                   std::to_string(options.num_epochs));
  }
  if (options.lease.count() <= 0) {
    return invalid("lease must be positive. Received: " +
                   std::to_string(options.lease.count()) + " ns");
  }
  return {};
}

WorkQueue::WaitId WorkQueue::Take(const WorkReader& reader, int64_t last,
                                  TakeCallback done) {
  Calls calls;
  WaitId id = 0;
  {
    const MutexLock lock(mu_);
    const ReaderKey key(reader.worker.device, reader.stream);
    id = ++last_wait_;
    const auto wait = waits_.insert({id, Wait{key, std::move(done)}}).first;
    if (is_shut_down_) {
      EndWait(wait, {GateStatus::kCancelled, "the work queue is gone"}, {},
              &calls);
    } else if (!BeginLife(reader.worker, &calls)) {
      EndWait(wait,
              {GateStatus::kAborted,
               "this life of " + reader.worker.device +
                   " is over: another one has asked for work"},
              {}, &calls);
    } else {
      // If the reader has another call here, the answer of that call was lost.
      for (auto other = waits_.begin(); other != wait;) {
        const auto next = std::next(other);
        if (other->second.reader == key) {
          EndWait(other, {GateStatus::kAborted, "the reader has asked again"},
                  {}, &calls);
        }
        other = next;
      }
      const auto held = held_.find(key);
      if (held == held_.end()) {
        counts_.late += last != kNoTicket ? 1 : 0;
      } else if (last == kNoTicket) {
        GiveBackOne(held);
      } else if (last == held->second.grant.ticket) {
        End(held);
      } else {
        held->second.since = clock_();
        EndWait(wait, {}, held->second.grant, &calls);
      }
      Serve(&calls);
    }
  }
  Make(calls);
  return id;
}

void WorkQueue::Leave(const std::string& device, bool gives_back) {
  Calls calls;
  {
    const MutexLock lock(mu_);
    lives_[device].is_leaving = true;
    if (gives_back) {
      GiveBackAll(device);
    }
    Serve(&calls);
  }
  Make(calls);
}

void WorkQueue::SetLimit(int64_t epoch) {
  Calls calls;
  {
    const MutexLock lock(mu_);
    limit_ = epoch;
    ForgetWhoLeaves();
    Serve(&calls);
  }
  Make(calls);
}

WorkQueueState WorkQueue::Save() const {
  const MutexLock lock(mu_);
  WorkQueueState state{Counters(), {}};
  std::set<WorkItem> waiting = given_back_;
  for (const auto& [reader, held] : held_) {
    waiting.insert(held.grant.item);
    ++state.given_back;
  }
  state.waiting_items.assign(waiting.begin(), waiting.end());
  return state;
}

GateStatus WorkQueue::Restore(const WorkQueueState& state) {
  const auto is_handed_out = [&](const WorkItem& item) {
    return item.epoch >= 0 && item.epoch <= state.epoch && item.item >= 0 &&
           item.item < options_.num_items;
  };
  if (state.epoch < 0 || state.position < 0 || state.limit < kNoLimit ||
      state.position >= options_.num_items ||
      (options_.num_epochs != 0 &&
       (state.epoch > options_.num_epochs ||
        (state.epoch == options_.num_epochs && state.position != 0))) ||
      !std::all_of(state.waiting_items.begin(), state.waiting_items.end(),
                   is_handed_out)) {
    return {GateStatus::kInvalidArgument,
            "the state is of another work queue: it is at item " +
                std::to_string(state.position) + " of epoch " +
                std::to_string(state.epoch) + ", and this one has " +
                std::to_string(options_.num_items) + " items and " +
                std::to_string(options_.num_epochs) + " epochs"};
  }
  Calls calls;
  // This is copied before anything is written, since there may be no memory for
  // it.
  std::set<WorkItem> given_back(state.waiting_items.begin(),
                                state.waiting_items.end());
  {
    const MutexLock lock(mu_);
    epoch_ = state.epoch;
    position_ = state.position;
    limit_ = state.limit;
    counts_ = state;
    given_back_ = std::move(given_back);
    held_.clear();
    ForgetWhoLeaves();
    Serve(&calls);
  }
  Make(calls);
  return {};
}

std::vector<int64_t> WorkQueue::Recent() const {
  const MutexLock lock(mu_);
  std::vector<int64_t> items;
  items.reserve(held_.size() + last_ended_.size());
  for (const auto& [reader, held] : held_) {
    items.push_back(held.grant.item.item);
  }
  for (const auto& [reader, item] : last_ended_) {
    items.push_back(item);
  }
  return items;
}

bool WorkQueue::Cancel(WaitId id) {
  Calls calls;
  {
    const MutexLock lock(mu_);
    const auto wait = waits_.find(id);
    if (wait != waits_.end()) {
      EndWait(wait, {GateStatus::kCancelled, "the wait was cancelled"}, {},
              &calls);
    }
  }
  Make(calls);
  return !calls.empty();
}

void WorkQueue::Shutdown() {
  Calls calls;
  {
    const MutexLock lock(mu_);
    is_shut_down_ = true;
    while (!waits_.empty()) {
      EndWait(waits_.begin(),
              {GateStatus::kCancelled, "the work queue is gone"}, {}, &calls);
    }
  }
  Make(calls);
}

WorkQueueStats WorkQueue::Stats() const {
  const MutexLock lock(mu_);
  WorkQueueStats stats{Counters()};
  stats.in_flight = static_cast<int64_t>(held_.size());
  stats.waiting_items = static_cast<int64_t>(given_back_.size());
  stats.waiting = static_cast<int64_t>(waits_.size());
  return stats;
}

WorkQueue::Time WorkQueue::Poll() {
  Calls calls;
  Time next = Time::max();
  {
    const MutexLock lock(mu_);
    const Time now = clock_();
    for (auto held = held_.begin(); held != held_.end();) {
      const auto after = std::next(held);
      if (held->second.since + options_.lease <= now) {
        GiveBackOne(held);
      }
      held = after;
    }
    Serve(&calls);
    for (const auto& [reader, held] : held_) {
      next = std::min(next, held.since + options_.lease);
    }
  }
  Make(calls);
  return next;
}

bool WorkQueue::BeginLife(const GateWorker& worker, Calls* calls) {
  Life& life = lives_[worker.device];
  if (life.over.count(worker.incarnation) != 0) {
    return false;
  }
  if (life.incarnation == worker.incarnation) {
    return true;
  }
  if (life.incarnation != 0) {
    life.over.insert(life.incarnation);
    life.is_leaving = false;
    GiveBackAll(worker.device);
    const WaitId own = last_wait_;
    for (auto wait = waits_.begin(); wait != waits_.end();) {
      const auto next = std::next(wait);
      if (wait->second.reader.first == worker.device && wait->first != own) {
        EndWait(wait,
                {GateStatus::kAborted,
                 "another life of " + worker.device + " has asked for work"},
                {}, calls);
      }
      wait = next;
    }
  }
  life.incarnation = worker.incarnation;
  return true;
}

bool WorkQueue::IsLeaving(const std::string& device) const {
  const auto life = lives_.find(device);
  return life != lives_.end() && life->second.is_leaving;
}

void WorkQueue::ForgetWhoLeaves() {
  for (auto& [device, life] : lives_) {
    life.is_leaving = false;
  }
}

void WorkQueue::GiveBackAll(const std::string& device) {
  auto held = held_.lower_bound({device, std::numeric_limits<uint64_t>::min()});
  while (held != held_.end() && held->first.first == device) {
    GiveBackOne(held++);
  }
}

void WorkQueue::GiveBackOne(std::map<ReaderKey, Held>::iterator held) {
  given_back_.insert(held->second.grant.item);
  ++counts_.given_back;
  held_.erase(held);
}

void WorkQueue::End(std::map<ReaderKey, Held>::iterator held) {
  ++counts_.done;
  last_ended_[held->first] = held->second.grant.item.item;
  held_.erase(held);
}

bool WorkQueue::HasNext() const {
  // Items that were given back are of no later epoch than the next item.
  const int64_t epoch =
      given_back_.empty() ? epoch_ : given_back_.begin()->epoch;
  return (limit_ == kNoLimit || epoch <= limit_) &&
         (options_.num_epochs == 0 || epoch < options_.num_epochs);
}

WorkQueue::Grant WorkQueue::HandOut(const ReaderKey& reader) {
  Held held;
  held.grant.ticket = ++last_ticket_;
  held.since = clock_();
  if (!given_back_.empty()) {
    held.grant.item = *given_back_.begin();
    given_back_.erase(given_back_.begin());
    ++counts_.repeated;
  } else {
    held.grant.item = Next();
    if (++position_ == options_.num_items) {
      position_ = 0;
      ++epoch_;
    }
  }
  ++counts_.handed_out;
  held_[reader] = held;
  return held.grant;
}

WorkItem WorkQueue::Next() const {
  if (!options_.shuffle) {
    return {epoch_, position_};
  }
  const ItemOrder order(options_.num_items, options_.seed, epoch_);
  return {epoch_, order.At(position_)};
}

WorkQueueCounters WorkQueue::Counters() const {
  WorkQueueCounters counters = counts_;
  counters.epoch = epoch_;
  counters.position = position_;
  counters.limit = limit_;
  return counters;
}

bool WorkQueue::MayComeBack(const std::string& device) const {
  const bool is_end_of_all = options_.num_epochs != 0 && limit_ == kNoLimit;
  // The worker's other readers may have to wait until this call ends.
  const auto own =
      held_.lower_bound({device, std::numeric_limits<uint64_t>::min()});
  const bool reads_on = own != held_.end() && own->first.first == device;
  return is_end_of_all && !held_.empty() && !reads_on;
}

void WorkQueue::EndWait(std::map<WaitId, Wait>::iterator wait,
                        GateStatus status, const Grant& grant, Calls* calls) {
  calls->push_back([done = std::move(wait->second.done),
                    status = std::move(status),
                    grant] { done(status, grant); });
  waits_.erase(wait);
}

void WorkQueue::Serve(Calls* calls) {
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    const auto next = std::next(wait);
    const bool leaves = IsLeaving(wait->second.reader.first);
    if (HasNext() && !leaves) {
      const Grant grant = HandOut(wait->second.reader);
      EndWait(wait, {}, grant, calls);
    } else if (leaves || !MayComeBack(wait->second.reader.first)) {
      EndWait(wait, {GateStatus::kOutOfRange, "all items were handed out"}, {},
              calls);
    }
    wait = next;
  }
}

void WorkQueue::Make(const Calls& calls) {
  for (const auto& call : calls) {
    call();
  }
}

}  // namespace tf_syncrep
