// The rows that a sparse gradient names, as keys that a GPU sorts.

#ifndef TF_SYNCREP_CC_LIB_CUDA_ROW_KEYS_H_
#define TF_SYNCREP_CC_LIB_CUDA_ROW_KEYS_H_

#include <cstdint>

namespace tf_syncrep {

// The first index, by its place in the gradient, that is not a row of the
// table.
struct GpuBadIndex {
  int64_t position;  // -1: all are rows
  int64_t index;     // undefined then
};

inline constexpr int64_t kMaxGpuIndices = INT32_MAX;

namespace gpu {

// How many low bits of the keys differ, all others being 0.
inline int NumKeyBits(int64_t num_rows) {
  int bits = 1;
  while (bits < 64 && (static_cast<uint64_t>(num_rows) >> bits) != 0) {
    ++bits;
  }
  return bits;
}

}  // namespace gpu
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_ROW_KEYS_H_
