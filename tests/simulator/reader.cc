#include "tests/simulator/reader.h"

#include <utility>

namespace tf_syncrep::simulator {

void Reader::Begin() {
  has_ended_ = is_read_ = false;
  grant_ = {};
}

bool Reader::Again() {
  if (!is_up()) {
    return false;
  }
  Forget();
  Begin();
  return true;
}

void Reader::Next() {
  if (grant_.ticket != WorkQueue::kNoTicket && !std::exchange(is_read_, true)) {
    ++cluster().num_read[grant_.item];
  }
  Call call = NewCall(CallKind::kItem, cluster().QueueTask());
  call.process = cluster().setup.ProcessOf(task());
  call.stream = task().number;
  call.ticket = grant_.ticket;
  call.item = grant_.item;
  Send(std::move(call));
}

void Reader::Take(Call* call) {
  if (call->status.ok()) {
    grant_ = call->grant;
    is_read_ = false;
  }
}

void Reader::GoOn() {
  if (error() == nullptr) {
    return;
  }
  if (error()->code == GateStatus::kOutOfRange) {
    has_ended_ = true;
    return;
  }
  Rest();  // Afterwards it asks the same question again.
}

}  // namespace tf_syncrep::simulator
