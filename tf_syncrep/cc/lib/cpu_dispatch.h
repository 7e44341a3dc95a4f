// Run-time choice of the vector instruction set.
//
// One portable binary holds each hot loop three times. A loop is written once,
// as an always-inlined template, and instantiated inside functions that carry a
// TF_SYNCREP_TARGET_* attribute, where the compiler vectorises it for that
// instruction set. All levels give bitwise the same results: the build forbids
// contraction into fused multiply-add, and every operation used is correctly
// rounded.

#ifndef TF_SYNCREP_CC_LIB_CPU_DISPATCH_H_
#define TF_SYNCREP_CC_LIB_CPU_DISPATCH_H_

#include <cstdint>

// nvcc compiles functions with this mark for the GPU too.
#if defined(__CUDACC__)
#define TF_SYNCREP_ALWAYS_INLINE __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define TF_SYNCREP_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define TF_SYNCREP_ALWAYS_INLINE inline
#endif

#if defined(__GNUC__) && defined(__x86_64__)
#define TF_SYNCREP_TARGET_AVX2 __attribute__((target("avx2")))
#if defined(__clang__)
#define TF_SYNCREP_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define TF_SYNCREP_TARGET_AVX512 \
  __attribute__((                \
      target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#else
#define TF_SYNCREP_TARGET_AVX2
#define TF_SYNCREP_TARGET_AVX512
#endif

namespace tf_syncrep {

enum class CpuLevel { kBaseline, kAvx2, kAvx512 };

// The best level that this CPU and operating system support; found once.
CpuLevel BestCpuLevel();

// The one of three that was compiled for a level.
template <typename T>
const T& OfLevel(CpuLevel level, const T* baseline, const T* avx2,
                 const T* avx512) {
  switch (level) {
    case CpuLevel::kAvx512:
      return *avx512;
    case CpuLevel::kAvx2:
      return *avx2;
    case CpuLevel::kBaseline:
      break;
  }
  return *baseline;
}

// While in scope, denormal numbers count as zero on this thread, as they do on
// TensorFlow's own threads. Work that is split over a pool sets it in every
// part, so that a call gives the same bits on whatever threads it runs.
//
// x86-64 decides whether a result is denormal after rounding it, and AArch64
// before. So a result that rounds up to the smallest normal number is that
// number on x86-64, and zero on AArch64.
class ScopedFlushDenormals {
 public:
  ScopedFlushDenormals();
  ~ScopedFlushDenormals();
  ScopedFlushDenormals(const ScopedFlushDenormals&) = delete;
  ScopedFlushDenormals& operator=(const ScopedFlushDenormals&) = delete;

 private:
  uint64_t saved_;  // the processor's control register
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CPU_DISPATCH_H_
