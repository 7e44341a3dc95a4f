// Asks for memory that is needed soon.

#ifndef TF_SYNCREP_CC_LIB_PREFETCH_H_
#define TF_SYNCREP_CC_LIB_PREFETCH_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

enum class PrefetchFor { kReading, kWriting };

// Gets `bytes` at `data`, a row of a table that is larger than any cache, on
// their way into it. Any address will do.
//
// Inlined, as everything must be that only calls it: to GCC a function that
// only prefetches does nothing, and it drops the calls. tests/cc looks for the
// instructions in what the compiler makes of its callers.
template <PrefetchFor kFor>
TF_SYNCREP_ALWAYS_INLINE void Prefetch(const void* data, int64_t bytes) {
  constexpr int64_t kLineBytes = 64;
  // The hardware follows on its own after a few lines.
  constexpr int64_t kMaxBytes = 8 * kLineBytes;
  const int64_t end = bytes < kMaxBytes ? bytes : kMaxBytes;
  for (int64_t i = 0; i < end; i += kLineBytes) {
    __builtin_prefetch(static_cast<const char*>(data) + i,
                       /*rw=*/kFor == PrefetchFor::kWriting);
  }
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_PREFETCH_H_
