// Prefetches memory that is needed soon.

#ifndef TF_SYNCREP_CC_LIB_PREFETCH_H_
#define TF_SYNCREP_CC_LIB_PREFETCH_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

enum class PrefetchFor { kReading, kWriting };

// Starts to load `bytes` at `data`, a row of a table that is larger than any
// cache. Any address will do.
//
// This function is always inlined, and so must be every function that only
// calls it: GCC takes a function that only prefetches for one without effect,
// and drops calls of it. tests/cc looks for the prefetch instructions in the
// compiled callers.
template <PrefetchFor kFor>
TF_SYNCREP_ALWAYS_INLINE void Prefetch(const void* data, int64_t bytes) {
  constexpr int64_t kLineBytes = 64;
  // The hardware prefetches the following lines by itself after a few.
  constexpr int64_t kMaxBytes = 8 * kLineBytes;
  const int64_t end = bytes < kMaxBytes ? bytes : kMaxBytes;
  for (int64_t i = 0; i < end; i += kLineBytes) {
    __builtin_prefetch(static_cast<const char*>(data) + i,
                       /*rw=*/kFor == PrefetchFor::kWriting);
  }
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_PREFETCH_H_
