#include "tf_syncrep/cc/lib/kept_bytes.h"

#include <algorithm>

namespace tf_syncrep {
namespace {

constexpr std::chrono::milliseconds kAskAgain(50);

}  // namespace

bool KeptBytes::TryAdd(int64_t bytes) {
  const MutexLock lock(mu_);
  if (!HasRoom(bytes)) {
    return false;
  }
  bytes_ += bytes;
  peak_ = std::max(peak_, bytes_);
  return true;
}

bool KeptBytes::WaitForRoom(int64_t bytes,
                            const std::function<bool()>& cancelled) {
  MutexLock lock(mu_);
  int64_t seen = progress_;
  auto since = std::chrono::steady_clock::now();
  while (!closed_ && !HasRoom(bytes)) {
    changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kAskAgain);
    const auto now = std::chrono::steady_clock::now();
    if (progress_ != seen) {
      seen = progress_;
      since = now;
    }
    lock.Unlock();
    const bool give_up = now - since > patience_ || cancelled();
    lock.Lock();
    if (give_up) {
      return closed_ || HasRoom(bytes);
    }
  }
  return true;
}

void KeptBytes::Free(int64_t bytes) {
  const MutexLock lock(mu_);
  bytes_ -= bytes;
  changed_.NotifyAll();
}

void KeptBytes::Progress() {
  const MutexLock lock(mu_);
  ++progress_;
}

void KeptBytes::Close() {
  const MutexLock lock(mu_);
  closed_ = true;
  changed_.NotifyAll();
}

void KeptBytes::GiveUp(Reason reason) {
  {
    const MutexLock lock(mu_);
    gave_up_ = gave_up_ == Reason::kNone ? reason : gave_up_;
  }
  Close();
}

KeptBytes::Reason KeptBytes::gave_up() const {
  const MutexLock lock(mu_);
  return gave_up_;
}

int64_t KeptBytes::peak() const {
  const MutexLock lock(mu_);
  return peak_;
}

}  // namespace tf_syncrep
