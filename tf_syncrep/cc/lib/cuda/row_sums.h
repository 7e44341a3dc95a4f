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
// column adds them up in their order, while the loads of the next ones are
// under way. `load(place, column)` returns kWidth elements of an occurrence,
// which divides the row's size; `store(column, sum)` is called once for each
// column.
template <int kWidth, typename Sum, typename Load, typename Store>
__device__ __forceinline__ void SumLongRow(int64_t begin, int64_t end,
                                           int64_t row_size, const Load& load,
                                           const Store& store) {
  // Of each thread, under way at the same time: 16 elements.
  constexpr int kLoads = kWidth == 1 ? 8 : kWidth == 8 ? 2 : 4;
  __shared__ Vector<Sum, kWidth> tile[kLoads * kBlockThreads];
  const Sum* const elements = reinterpret_cast<const Sum*>(tile);
  int columns = kWidth;  // of the tile
  while (columns < 64 && columns < row_size) {
    columns *= 2;
  }
  const int vectors = columns / kWidth;
  const int tile_rows = kLoads * kBlockThreads / vectors;
  const int thread = static_cast<int>(threadIdx.x);
  const int vector = thread % vectors;
  const int first = thread / vectors;
  const int step = kBlockThreads / vectors;
  for (int64_t left = 0; left < row_size; left += columns) {
    const int64_t loaded_column = left + vector * kWidth;
    Vector<Sum, kWidth> loaded[kLoads] = {};
    const auto load_tile = [&](int64_t from) {
      TF_SYNCREP_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        const int64_t place = from + first + i * step;
        if (loaded_column < row_size && place < end) {
          loaded[i] = load(place, loaded_column);
        }
      }
    };
    const bool sums = thread < columns && left + thread < row_size;
    Sum sum = 0;
    load_tile(begin);
    for (int64_t from = begin; from < end; from += tile_rows) {
      __syncthreads();  // the tile before has been added up
      TF_SYNCREP_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        tile[(first + i * step) * vectors + vector] = loaded[i];
      }
      __syncthreads();
      load_tile(from + tile_rows);
      if (sums) {
        const int64_t rest = end - from;
        const int count = rest < tile_rows ? static_cast<int>(rest) : tile_rows;
        int i = 0;
        if (from == begin) {
          sum = elements[thread];
          i = 1;
        }
        TF_SYNCREP_UNROLL_BY_4
        for (; i < count; ++i) {
          sum += elements[i * columns + thread];
        }
      }
    }
    if (sums) {
      store(left + thread, sum);
    }
  }
}

}  // namespace gpu
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_ROW_SUMS_H_
