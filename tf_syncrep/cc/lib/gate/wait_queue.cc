#include "tf_syncrep/cc/lib/gate/wait_queue.h"

#include <algorithm>
#include <utility>

namespace tf_syncrep {

WaitQueue::Acquires::node_type WaitQueue::ExtractAcquire(int64_t id) {
  for (Acquires* waits : {&ready, &sated}) {
    Acquires::node_type wait = waits->extract(id);
    if (!wait.empty()) {
      return wait;
    }
  }
  return early.extract(id);
}

WaitQueue::Acquires WaitQueue::TakeForPermits() {
  ready.merge(sated);
  return std::exchange(ready, {});
}

bool WaitQueue::HasFlush() const {
  return std::any_of(updaters.begin(), updaters.end(), [](const auto& entry) {
    return entry.second.kind == UpdaterWait::Kind::kFlush;
  });
}

GateTime WaitQueue::NextDeadline() const {
  GateTime next = GateTime::max();
  for (const auto& [id, wait] : updaters) {
    next = std::min(next, wait.deadline);
  }
  for (const auto& [id, wait] : early) {
    next = std::min(next, wait.deadline);
  }
  return next;
}

}  // namespace tf_syncrep
