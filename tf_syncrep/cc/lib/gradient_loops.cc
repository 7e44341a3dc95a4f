#include "tf_syncrep/cc/lib/gradient_loops.h"

#include <cstring>
#include <type_traits>

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tf_syncrep {
namespace {

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void Set(int64_t size, const T* __restrict__ a,
                                  SlotType<T>* __restrict__ sum) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] = Widen(a[i]);
  }
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void Add(int64_t size, const T* __restrict__ a,
                                  SlotType<T>* __restrict__ sum) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] += Widen(a[i]);
  }
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void AddScaled(int64_t size, SlotType<T> factor,
                                        const T* __restrict__ a,
                                        SlotType<T>* __restrict__ sum) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] += factor * Widen(a[i]);
  }
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void NarrowAll(int64_t size,
                                        const SlotType<T>* __restrict__ sum,
                                        T* __restrict__ out) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = Narrow<T>(sum[i]);
  }
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void AddTwo(int64_t size, const T* __restrict__ a,
                                     const T* __restrict__ b,
                                     SlotType<T>* __restrict__ sum) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] = (sum[i] + Widen(a[i])) + Widen(b[i]);
  }
}

// Columns that are added at once, in the widest registers there are. Written as
// loops over columns, GCC would move them out of the registers again.
template <typename Sum>
struct Columns {
  static constexpr int64_t kSize = 64 / sizeof(Sum);
  typedef Sum Vector __attribute__((vector_size(64)));
};

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void LoadColumns(
    const T* a, typename Columns<SlotType<T>>::Vector& columns) {
  SlotType<T> widened[Columns<SlotType<T>>::kSize];
  Set<T>(Columns<SlotType<T>>::kSize, a, widened);
  std::memcpy(&columns, widened, sizeof(columns));
}

// Adds kNumVectors times as many columns.
template <int kNumVectors, typename T>
TF_SYNCREP_ALWAYS_INLINE void AddColumns(const T* const* rows, int64_t num_rows,
                                         bool is_new, int64_t column,
                                         SlotType<T>* __restrict__ sum) {
  using Sum = SlotType<T>;
  constexpr int64_t kSize = Columns<Sum>::kSize;
  typename Columns<Sum>::Vector sums[kNumVectors];
  for (int v = 0; v < kNumVectors; ++v) {
    if (is_new) {
      LoadColumns<T>(rows[0] + column + v * kSize, sums[v]);
    } else {
      LoadColumns<Sum>(sum + column + v * kSize, sums[v]);
    }
  }
  for (int64_t k = is_new ? 1 : 0; k < num_rows; ++k) {
    for (int v = 0; v < kNumVectors; ++v) {
      typename Columns<Sum>::Vector more;
      LoadColumns<T>(rows[k] + column + v * kSize, more);
      sums[v] += more;
    }
  }
  std::memcpy(sum + column, sums, sizeof(sums));
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void AddRows(int64_t size, const T* const* rows,
                                      int64_t num_rows, bool is_new,
                                      SlotType<T>* __restrict__ sum) {
  constexpr int kNumVectors = 4;
  constexpr int64_t kSize = kNumVectors * Columns<SlotType<T>>::kSize;
  int64_t column = 0;
  for (; column + kSize <= size; column += kSize) {
    AddColumns<kNumVectors, T>(rows, num_rows, is_new, column, sum);
  }
  for (int64_t k = 0; k < num_rows; ++k) {
    if (k == 0 && is_new) {
      Set<T>(size - column, rows[k] + column, sum + column);
    } else {
      Add<T>(size - column, rows[k] + column, sum + column);
    }
  }
}

template <typename Sum>
TF_SYNCREP_ALWAYS_INLINE void Divide(int64_t size, Sum divisor,
                                     Sum* __restrict__ sum) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] /= divisor;
  }
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void AddDivide(int64_t size, const T* __restrict__ a,
                                        SlotType<T> divisor,
                                        SlotType<T>* __restrict__ sum) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] = (sum[i] + Widen(a[i])) / divisor;
  }
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void DivideTo(int64_t size,
                                       const SlotType<T>* __restrict__ sum,
                                       SlotType<T> divisor,
                                       T* __restrict__ out) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = Narrow<T>(sum[i] / divisor);
  }
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void AddDivideTo(int64_t size,
                                          const SlotType<T>* __restrict__ sum,
                                          const T* __restrict__ a,
                                          SlotType<T> divisor,
                                          T* __restrict__ out) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = Narrow<T>((sum[i] + Widen(a[i])) / divisor);
  }
}

#define TF_SYNCREP_DEFINE_LOOPS(LEVEL, TARGET)                                 \
  template <typename T>                                                        \
  struct LEVEL {                                                               \
    using Sum = SlotType<T>;                                                   \
    TARGET static void SetLoop(int64_t size, const T* a, Sum* sum) {           \
      Set<T>(size, a, sum);                                                    \
    }                                                                          \
    TARGET static void AddLoop(int64_t size, const T* a, Sum* sum) {           \
      Add<T>(size, a, sum);                                                    \
    }                                                                          \
    TARGET static void AddScaledLoop(int64_t size, Sum factor, const T* a,     \
                                     Sum* sum) {                               \
      AddScaled<T>(size, factor, a, sum);                                      \
    }                                                                          \
    TARGET static void AddTwoLoop(int64_t size, const T* a, const T* b,        \
                                  Sum* sum) {                                  \
      AddTwo<T>(size, a, b, sum);                                              \
    }                                                                          \
    TARGET static void AddRowsLoop(int64_t size, const T* const* rows,         \
                                   int64_t num_rows, bool is_new, Sum* sum) {  \
      AddRows<T>(size, rows, num_rows, is_new, sum);                           \
    }                                                                          \
    TARGET static void NarrowLoop(int64_t size, const Sum* sum, T* out) {      \
      NarrowAll<T>(size, sum, out);                                            \
    }                                                                          \
    TARGET static void DivideLoop(int64_t size, Sum divisor, Sum* sum) {       \
      Divide<Sum>(size, divisor, sum);                                         \
    }                                                                          \
    TARGET static void AddDivideLoop(int64_t size, const T* a, Sum divisor,    \
                                     Sum* sum) {                               \
      AddDivide<T>(size, a, divisor, sum);                                     \
    }                                                                          \
    TARGET static void DivideToLoop(int64_t size, const Sum* sum, Sum divisor, \
                                    T* out) {                                  \
      DivideTo<T>(size, sum, divisor, out);                                    \
    }                                                                          \
    TARGET static void AddDivideToLoop(int64_t size, const Sum* sum,           \
                                       const T* a, Sum divisor, T* out) {      \
      AddDivideTo<T>(size, sum, a, divisor, out);                              \
    }                                                                          \
    static constexpr GradientLoops<T> kLoops = {                               \
        SetLoop,    AddLoop,    AddScaledLoop, AddTwoLoop,   AddRowsLoop,      \
        NarrowLoop, DivideLoop, AddDivideLoop, DivideToLoop, AddDivideToLoop}; \
  }

TF_SYNCREP_DEFINE_LOOPS(BaselineLoops, );
TF_SYNCREP_DEFINE_LOOPS(Avx2Loops, TF_SYNCREP_TARGET_AVX2);
TF_SYNCREP_DEFINE_LOOPS(Avx512Loops, TF_SYNCREP_TARGET_AVX512);

#undef TF_SYNCREP_DEFINE_LOOPS

#if defined(__GNUC__) && defined(__x86_64__)

// Rows of halves that the processor itself widens, eight at once: a third of
// the time of Widen(), whose bits these are but for signalling NaNs.
#define TF_SYNCREP_TARGET_F16C __attribute__((target("avx2,f16c")))

TF_SYNCREP_TARGET_F16C inline __m256 WidenEight(const Half* a) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
}

TF_SYNCREP_TARGET_F16C void SetHalves(int64_t size, const Half* a, float* sum) {
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    _mm256_storeu_ps(sum + i, WidenEight(a + i));
  }
  Set<Half>(size - i, a + i, sum + i);
}

TF_SYNCREP_TARGET_F16C void AddScaledHalves(int64_t size, float factor,
                                            const Half* a, float* sum) {
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const __m256 more =
        _mm256_mul_ps(_mm256_set1_ps(factor), WidenEight(a + i));
    _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), more));
  }
  AddScaled<Half>(size - i, factor, a + i, sum + i);
}

GradientLoops<Half> WithF16c(GradientLoops<Half> loops) {
  if (__builtin_cpu_supports("f16c")) {
    loops.set = SetHalves;
    loops.add_scaled = AddScaledHalves;
  }
  return loops;
}

#else

GradientLoops<Half> WithF16c(const GradientLoops<Half>& loops) { return loops; }

#endif

}  // namespace

template <typename T>
const GradientLoops<T>& GradientLoopsFor(CpuLevel level) {
  if constexpr (std::is_same_v<T, Half>) {
    static const GradientLoops<T> avx2 = WithF16c(Avx2Loops<T>::kLoops);
    static const GradientLoops<T> avx512 = WithF16c(Avx512Loops<T>::kLoops);
    return OfLevel(level, &BaselineLoops<T>::kLoops, &avx2, &avx512);
  } else {
    return OfLevel(level, &BaselineLoops<T>::kLoops, &Avx2Loops<T>::kLoops,
                   &Avx512Loops<T>::kLoops);
  }
}

template const GradientLoops<Half>& GradientLoopsFor<Half>(CpuLevel);
template const GradientLoops<BFloat16>& GradientLoopsFor<BFloat16>(CpuLevel);
template const GradientLoops<float>& GradientLoopsFor<float>(CpuLevel);
template const GradientLoops<double>& GradientLoopsFor<double>(CpuLevel);

}  // namespace tf_syncrep
