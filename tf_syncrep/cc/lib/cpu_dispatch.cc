#include "tf_syncrep/cc/lib/cpu_dispatch.h"

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tf_syncrep {
namespace {

CpuLevel DetectCpuLevel() {
#if defined(__GNUC__) && defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return CpuLevel::kAvx512;
  }
  if (__builtin_cpu_supports("avx2")) {
    return CpuLevel::kAvx2;
  }
#endif
  return CpuLevel::kBaseline;
}

}  // namespace

CpuLevel BestCpuLevel() {
  static const CpuLevel level = DetectCpuLevel();
  return level;
}

#if defined(__x86_64__)

ScopedFlushDenormals::ScopedFlushDenormals() : saved_(_mm_getcsr()) {
  constexpr unsigned int kFlushToZero = 0x8000;
  constexpr unsigned int kDenormalsAreZero = 0x0040;
  _mm_setcsr(static_cast<unsigned int>(saved_) | kFlushToZero |
             kDenormalsAreZero);
}

ScopedFlushDenormals::~ScopedFlushDenormals() {
  _mm_setcsr(static_cast<unsigned int>(saved_));
}

#elif defined(__aarch64__)

// The statements are volatile and clobber memory, so that the compiler moves no
// arithmetic on memory across them.
ScopedFlushDenormals::ScopedFlushDenormals() {
  constexpr uint64_t kFlushToZero = uint64_t{1} << 24;  // FPCR.FZ
  asm volatile("mrs %0, fpcr" : "=r"(saved_)::"memory");
  asm volatile("msr fpcr, %0" ::"r"(saved_ | kFlushToZero) : "memory");
}

ScopedFlushDenormals::~ScopedFlushDenormals() {
  asm volatile("msr fpcr, %0" ::"r"(saved_) : "memory");
}

#else

ScopedFlushDenormals::ScopedFlushDenormals() : saved_(0) {}
ScopedFlushDenormals::~ScopedFlushDenormals() { static_cast<void>(saved_); }

#endif

}  // namespace tf_syncrep
