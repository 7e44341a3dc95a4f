// Whether this process may take more memory, before the kernel ends it.

#ifndef TF_SYNCREP_CC_LIB_MEMORY_GUARD_H_
#define TF_SYNCREP_CC_LIB_MEMORY_GUARD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace tf_syncrep {

// How many bytes a process may still take, and of how many.
struct MemoryLeft {
  int64_t bytes;
  int64_t total;
};

// Returns what is left in the machine or in one of the control groups of this
// process, whichever is the least: memory that is in use and that the kernel
// cannot take back is not left. Swap space does not count. Where the kernel
// does not say how much there is, both numbers are the largest.
//
// The files of the kernel are read below `root`.
MemoryLeft ReadMemoryLeft(const std::string& root = "");

// Refuses memory for rows when little is left. Pages that were mapped long ago
// take memory when they are written for the first time; if there is none then,
// the kernel ends the process, and no program can turn that into an error. So
// some is left for everything else: messages, slots, the index.
//
// Thread-safe. Two calls at the same time may both see the same memory.
class MemoryGuard {
 public:
  using Reader = std::function<MemoryLeft()>;

  // What is left is read only once in so many bytes.
  static constexpr int64_t kUncheckedBytes = int64_t{8} << 20;

  explicit MemoryGuard(Reader reader) : reader_(std::move(reader)) {}

  static MemoryGuard& OfProcess();

  // Returns how many of `total` bytes are to stay free.
  static int64_t Reserve(int64_t total);

  // Returns whether `bytes` may be taken. If not, `left` is set to what is
  // left, and nothing is counted.
  [[nodiscard]] bool TryTake(int64_t bytes, MemoryLeft* left);

 private:
  const Reader reader_;
  std::atomic<int64_t> unchecked_bytes_{0};
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_MEMORY_GUARD_H_
