// How much may be kept aside for a snapshot that is still being read.

#ifndef TF_SYNCREP_CC_LIB_KEPT_BYTES_H_
#define TF_SYNCREP_CC_LIB_KEPT_BYTES_H_

#include <chrono>
#include <cstdint>
#include <functional>

#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// A bound that holds for all tables of a snapshot together, and is exceeded
// only by something that is larger and is kept alone. Whoever is about to keep
// rows waits while there is no room. The wait ends when the reader of the
// snapshot has freed some, or has gone on reading; when it closes the bound, at
// its end or an error; and when it has got nowhere for `patience`.
class KeptBytes {
 public:
  using Seconds = std::chrono::duration<double>;

  KeptBytes(int64_t max_bytes, Seconds patience)
      : max_bytes_(max_bytes), patience_(patience) {}

  // Counts as many if there is room for them, and returns whether there was.
  [[nodiscard]] bool TryAdd(int64_t bytes);

  // Waits until there is room for as many. False if the snapshot is to be given
  // up: the reader got nowhere, or `cancelled`, which is asked now and then,
  // says so. True, too, when closed: then there is nothing to keep.
  bool WaitForRoom(int64_t bytes, const std::function<bool()>& cancelled);

  void Free(int64_t bytes);

  // The reader has made progress.
  void Progress();

  // Ends all waits, now and later.
  void Close();

  enum class Reason { kNone, kNoProgress, kOutOfMemory };

  // The same, and tells the reader that nothing was kept from here on, and why.
  // The first reason counts.
  void GiveUp(Reason reason);
  // Why; kNone if nobody has.
  Reason gave_up() const;

  Seconds patience() const { return patience_; }

  // The most that was kept at a time.
  int64_t peak() const;

 private:
  bool HasRoom(int64_t bytes) const TF_SYNCREP_REQUIRES(mu_) {
    return bytes_ == 0 || bytes <= max_bytes_ - bytes_;
  }

  const int64_t max_bytes_;
  const Seconds patience_;
  mutable Mutex mu_;
  CondVar changed_;  // of what HasRoom() says, and of closed_
  int64_t bytes_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  int64_t peak_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  int64_t progress_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  bool closed_ TF_SYNCREP_GUARDED_BY(mu_) = false;
  Reason gave_up_ TF_SYNCREP_GUARDED_BY(mu_) = Reason::kNone;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_KEPT_BYTES_H_
