#include "tests/simulator/watched_queue.h"

#include <memory>

namespace tf_syncrep::simulator {
namespace {

// Readers of one worker belong to one process.
GateWorker WorkerOf(const Call& call) {
  return {Text(call.process), static_cast<uint64_t>(call.from_life)};
}

std::string Text(const WorkQueue::Grant& grant) {
  return "item " + std::to_string(grant.item.item) + " of epoch " +
         std::to_string(grant.item.epoch) + ", ticket " +
         std::to_string(grant.ticket);
}

}  // namespace

WatchedQueue::WatchedQueue(const WorkQueueOptions& options,
                           WorkQueue::Clock clock, Log log)
    : clock_(std::move(clock)),
      log_(std::move(log)),
      checker_(options),
      queue_(options, clock_) {}

void WatchedQueue::Handle(Call* call) {
  call->state = Call::State::kComesBack;
  switch (call->kind) {
    case CallKind::kItem:
      Take(call);
      break;
    case CallKind::kSave: {
      auto saved = std::make_shared<SavedQueue>();
      saved->state = queue_.Save();
      saved->checked = checker_.Save();
      call->saved = std::move(saved);
      break;
    }
    case CallKind::kRestore:
      Restore(*call->saved);
      break;
    case CallKind::kLimit:
      checker_.SetLimit(call->count);
      queue_.SetLimit(call->count);
      break;
    default:
      error_ = "work queue: " + Text(call->kind) + " is no call for it";
      break;
  }
  After();
}

void WatchedQueue::Take(Call* call) {
  const WorkReader reader = {WorkerOf(*call), call->stream};
  have_asked_.emplace(reader.worker.device, reader.worker.incarnation);
  call->state = Call::State::kWaits;
  checker_.Ask(call->number, {reader, call->ticket, call->item}, clock_());
  if (log_) {
    log_(Text(call->from) + " asks, with ticket " +
         std::to_string(call->ticket));
  }
  call->wait = queue_.Take(
      reader, call->ticket,
      [this, call](const GateStatus& status, const WorkQueue::Grant& grant) {
        checker_.Answer(call->number, status, grant, clock_());
        if (log_) {
          log_(Text(call->from) + " gets " +
               (status.ok() ? Text(grant) : "no item: " + status.message));
        }
        call->state = Call::State::kComesBack;
        call->status = status;
        call->grant = grant;
      });
}

void WatchedQueue::Cancel(Call* call) {
  if (call->state == Call::State::kComesBack && call->status.ok()) {
    // The answer is lost: the reader has the item, but does not know.
    call->status = {GateStatus::kCancelled, "The step was cancelled."};
  }
  if (call->state != Call::State::kWaits) {
    return;
  }
  checker_.Cancel(call->number);
  queue_.Cancel(call->wait);
  if (call->state == Call::State::kWaits && error_.empty()) {
    error_ = "work queue: a wait that is cancelled ends";
  }
  After();
}

WorkQueue::Time WatchedQueue::Poll() {
  checker_.EndLeases(clock_());
  const WorkQueue::Time next = queue_.Poll();
  After();
  return next;
}

void WatchedQueue::Shutdown() {
  checker_.Shutdown();
  queue_.Shutdown();
  After();
}

void WatchedQueue::Restore(const SavedQueue& saved) {
  checker_.Restore(saved.checked);
  if (!queue_.Restore(saved.state).ok() && error_.empty()) {
    error_ = "work queue: what was saved can be restored";
  }
  After();
}

bool WatchedQueue::HasHeardOf(const Call& call) const {
  const GateWorker worker = WorkerOf(call);
  return have_asked_.count({worker.device, worker.incarnation}) > 0;
}

void WatchedQueue::After() { checker_.Check(queue_.Stats()); }

}  // namespace tf_syncrep::simulator
