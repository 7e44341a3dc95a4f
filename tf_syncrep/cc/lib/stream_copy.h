// Copies past the caches.

#ifndef TF_SYNCREP_CC_LIB_STREAM_COPY_H_
#define TF_SYNCREP_CC_LIB_STREAM_COPY_H_

#include <cstddef>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tf_syncrep {

inline constexpr size_t kStreamAlignment = 64;

// Copies `bytes`, a multiple of kStreamAlignment, to `to`, which has this
// alignment, without reading the old contents of `to` and without keeping the
// new ones in the cache. For arrays that are larger than the cache. It is an
// ordinary copy on processors without such stores.
inline void StreamCopy(const void* from, size_t bytes, void* to) {
#if defined(__SSE2__)
  const auto* const in = static_cast<const char*>(from);
  auto* const out = static_cast<char*>(to);
  for (size_t i = 0; i < bytes; i += kStreamAlignment) {
    for (size_t k = i; k < i + kStreamAlignment; k += sizeof(__m128i)) {
      _mm_stream_si128(
          reinterpret_cast<__m128i*>(out + k),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + k)));
    }
  }
#else
  std::memcpy(to, from, bytes);
#endif
}

// To be called once after a thread's calls of StreamCopy(), before other
// threads are told that the copies are there.
inline void EndStream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_STREAM_COPY_H_
