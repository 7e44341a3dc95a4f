// How CUDA kernels read the rows that a sparse gradient names.
//
// nvcc compiles this file, and so does g++ behind tests/cc/cuda_emulation.h.

#ifndef TF_SYNCREP_CC_LIB_CUDA_ROW_INDICES_H_
#define TF_SYNCREP_CC_LIB_CUDA_ROW_INDICES_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/cuda/row_keys.h"
#include "tf_syncrep/cc/lib/cuda/vectors.h"

namespace tf_syncrep {
namespace gpu {

// The indices of a gradient, in memory of the GPU.
struct RowIndices {
  const void* indices;  // int32_t or int64_t
  bool is_int64;
  int64_t size;
  int64_t num_rows;  // of the table; negative: unknown
};

__device__ __forceinline__ int64_t IndexAt(const RowIndices& from, int64_t i) {
  return from.is_int64 ? static_cast<const int64_t*>(from.indices)[i]
                       : int64_t{static_cast<const int32_t*>(from.indices)[i]};
}

// Calls write(place, index, whether it is a row) for each of the indices. Each
// is read once, since others may change it meanwhile in their own memory.
// bad_index->position, which must be -1, the greatest unsigned number, before,
// is set to the first place whose index is not a row. `bad_index` may be null.
template <typename Write>
__device__ __forceinline__ void ReadIndices(const RowIndices& from,
                                            GpuBadIndex* bad_index,
                                            const Write& write) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  for (int64_t i =
           static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
       i < from.size; i += stride) {
    const int64_t index = IndexAt(from, i);
    const bool is_row =
        index >= 0 && (from.num_rows < 0 || index < from.num_rows);
    write(i, index, is_row);
    if (!is_row && bad_index != nullptr) {
      atomicMin(reinterpret_cast<unsigned long long*>(&bad_index->position),
                static_cast<unsigned long long>(i));
    }
  }
}

}  // namespace gpu
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_ROW_INDICES_H_
