// What CUDA kernels that sum rows share.
//
// nvcc compiles this file, and so does g++ behind tests/cc/cuda_emulation.h.

#ifndef TF_SYNCREP_CC_LIB_CUDA_ROW_SUMS_H_
#define TF_SYNCREP_CC_LIB_CUDA_ROW_SUMS_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/cuda/vectors.h"

namespace tf_syncrep {
namespace gpu {

// A row with this many occurrences or more is left to a whole block instead of
// a few threads, which would take long for a row that is in every other
// gradient.
inline constexpr int kLongRow = 32;

// Sums a row's occurrences in [begin, end), with all threads of the block. Many
// elements at a time are loaded into shared memory, where one thread for each
// column adds them up in their order. `load(place, column)` returns an element
// of an occurrence; `store(column, sum)` is called once for each column.
template <typename Sum, typename Load, typename Store>
__device__ __forceinline__ void SumLongRow(int64_t begin, int64_t end,
                                           int64_t row_size, const Load& load,
                                           const Store& store) {
  constexpr int kLoads = 8;  // of each thread, under way at the same time
  __shared__ Sum tile[kLoads * kBlockThreads];
  int columns = 1;  // of the tile
  while (columns < 64 && columns < row_size) {
    columns *= 2;
  }
  const int tile_rows = kLoads * kBlockThreads / columns;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % columns;
  const int first = thread / columns;
  const int step = kBlockThreads / columns;
  for (int64_t left = 0; left < row_size; left += columns) {
    const bool is_column = left + column < row_size;
    Sum sum = 0;
    for (int64_t from = begin; from < end; from += tile_rows) {
      Sum loaded[kLoads];
      TF_SYNCREP_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        const int64_t place = from + first + i * step;
        loaded[i] =
            is_column && place < end ? load(place, left + column) : Sum(0);
      }
      __syncthreads();  // the tile before has been added up
      TF_SYNCREP_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        tile[(first + i * step) * columns + column] = loaded[i];
      }
      __syncthreads();
      if (thread < columns) {
        const int64_t rest = end - from;
        const int count = rest < tile_rows ? static_cast<int>(rest) : tile_rows;
        for (int i = 0; i < count; ++i) {
          const Sum g = tile[i * columns + column];
          sum = from == begin && i == 0 ? g : sum + g;
        }
      }
    }
    if (thread < columns && is_column) {
      store(left + column, sum);
    }
  }
}

}  // namespace gpu
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_ROW_SUMS_H_
