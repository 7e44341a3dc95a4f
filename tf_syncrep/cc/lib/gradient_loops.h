// The elementwise loops that sum gradients and rows.

#ifndef TF_SYNCREP_CC_LIB_GRADIENT_LOOPS_H_
#define TF_SYNCREP_CC_LIB_GRADIENT_LOOPS_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {

// Loops over `size` elements of arrays of type T and of their sum, for one
// instruction set. No two arrays of one call overlap.
template <typename T>
struct GradientLoops {
  using Sum = SlotType<T>;

  // sum = a
  void (*set)(int64_t size, const T* a, Sum* sum);
  // sum = sum + a
  void (*add)(int64_t size, const T* a, Sum* sum);
  // sum = sum + factor * a
  void (*add_scaled)(int64_t size, Sum factor, const T* a, Sum* sum);
  // sum = (sum + a) + b
  void (*add_two)(int64_t size, const T* a, const T* b, Sum* sum);
  // sum = ((sum + rows[0]) + rows[1]) + ..., without `sum` if `is_new`. There
  // must be at least one row. This is for short arrays at any addresses.
  void (*add_rows)(int64_t size, const T* const* rows, int64_t num_rows,
                   bool is_new, Sum* sum);
  // out = sum
  void (*narrow)(int64_t size, const Sum* sum, T* out);
  // sum = sum / divisor
  void (*divide)(int64_t size, Sum divisor, Sum* sum);
  // sum = (sum + a) / divisor
  void (*add_divide)(int64_t size, const T* a, Sum divisor, Sum* sum);
  // out = sum / divisor
  void (*divide_to)(int64_t size, const Sum* sum, Sum divisor, T* out);
  // out = (sum + a) / divisor
  void (*add_divide_to)(int64_t size, const Sum* sum, const T* a, Sum divisor,
                        T* out);
};

// For T = Half, BFloat16, float and double.
template <typename T>
const GradientLoops<T>& GradientLoopsFor(CpuLevel level);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GRADIENT_LOOPS_H_
