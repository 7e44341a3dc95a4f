// How much memory the sums of this process hold together.

#ifndef TF_SYNCREP_CC_LIB_HELD_BYTES_H_
#define TF_SYNCREP_CC_LIB_HELD_BYTES_H_

#include <atomic>
#include <cstdint>

namespace tf_syncrep {

// A count of bytes, with a limit that should not be exceeded. Nothing is
// refused; holders check whether they should hold less. Thread-safe.
class HeldBytesBudget {
 public:
  explicit HeldBytesBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // The budget for gradients that are held unmerged, as they came, in all
  // accumulators of this process. The limit is
  // TF_SYNCREP_UNMERGED_GRADIENTS_MB, which is read once, or 1024 MB if that is
  // not a number.
  static HeldBytesBudget& OfProcess();

  int64_t max_bytes() const { return max_bytes_; }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  bool is_exceeded() const { return bytes() > max_bytes_; }

 private:
  friend class HeldBytes;

  const int64_t max_bytes_;
  std::atomic<int64_t> bytes_{0};
};

// The part of one holder, which gives it back when it is destroyed. Not
// thread-safe.
class HeldBytes {
 public:
  explicit HeldBytes(HeldBytesBudget* budget) : budget_(budget) {}
  ~HeldBytes() { Set(0); }

  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;

  int64_t bytes() const { return bytes_; }

  void Set(int64_t bytes) {
    budget_->bytes_.fetch_add(bytes - bytes_, std::memory_order_relaxed);
    bytes_ = bytes;
  }

 private:
  HeldBytesBudget* const budget_;
  int64_t bytes_ = 0;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_HELD_BYTES_H_
