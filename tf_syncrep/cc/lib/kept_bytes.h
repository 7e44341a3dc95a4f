// How much memory may be kept for a snapshot that is still being read.

#ifndef TF_SYNCREP_CC_LIB_KEPT_BYTES_H_
#define TF_SYNCREP_CC_LIB_KEPT_BYTES_H_

#include <chrono>
#include <cstdint>
#include <functional>

#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// A bound that all tables of a snapshot share. It is exceeded only by a single
// piece that is larger than the bound and is kept alone. Writers that are about
// to keep rows wait while there is no room. The wait ends when the reader of
// the snapshot has freed some or has read on, when the reader closes the bound,
// at its end or after an error, and when the reader has made no progress for
// `patience`.
class KeptBytes {
 public:
  using Seconds = std::chrono::duration<double>;

  KeptBytes(int64_t max_bytes, Seconds patience)
      : max_bytes_(max_bytes), patience_(patience) {}

  // Adds `bytes` if there is room for them, and returns whether there was.
  [[nodiscard]] bool TryAdd(int64_t bytes);

  // Waits until there is room for `bytes`. Returns false if the snapshot must
  // be given up, because the reader made no progress or because `cancelled`,
  // which is asked now and then, returned true. Returns true also after
  // Close(), when nothing needs to be kept.
  bool WaitForRoom(int64_t bytes, const std::function<bool()>& cancelled);

  void Free(int64_t bytes);

  void Progress();

  // Ends all waits, now and later.
  void Close();

  enum class Reason { kNone, kNoProgress, kOutOfMemory, kNewShape };

  // The same, and tells the reader that nothing was kept from here on, and why.
  // The first reason counts.
  void GiveUp(Reason reason);
  // The reason, or kNone if nobody has given up.
  Reason gave_up() const;

  Seconds patience() const { return patience_; }

  // The most bytes that were kept at one time.
  int64_t peak() const;

 private:
  bool HasRoom(int64_t bytes) const TF_SYNCREP_REQUIRES(mu_) {
    return bytes_ == 0 || bytes <= max_bytes_ - bytes_;
  }

  const int64_t max_bytes_;
  const Seconds patience_;
  mutable Mutex mu_;
  CondVar changed_;  // changes of HasRoom() and of closed_
  int64_t bytes_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  int64_t peak_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  int64_t progress_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  bool closed_ TF_SYNCREP_GUARDED_BY(mu_) = false;
  Reason gave_up_ TF_SYNCREP_GUARDED_BY(mu_) = Reason::kNone;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_KEPT_BYTES_H_
