// The CUDA kernels of sparse sums, without their launches.
//
// nvcc compiles this file, and so does g++ behind tests/cc/cuda_emulation.h.
// Thread blocks have kBlockThreads threads. All grids may have any number of
// blocks.

#ifndef TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_SPARSE_KERNELS_H_
#define TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_SPARSE_KERNELS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/cuda/row_indices.h"
#include "tf_syncrep/cc/lib/cuda/row_sums.h"
#include "tf_syncrep/cc/lib/cuda/vectors.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {
namespace gpu {

// --- The indices of a gradient -----------------------------------------------

// The kernel of CopyRowsOnGpu(). bad_index->position must be -1, the greatest
// unsigned number, before.
static __global__ __launch_bounds__(kBlockThreads) void CopyRowsKernel(
    RowIndices indices, int64_t* rows, GpuBadIndex* bad_index) {
  ReadIndices(
      indices, bad_index,
      [rows](int64_t i, int64_t index, bool /*is_row*/) { rows[i] = index; });
}

// Runs in one thread, after CopyRowsKernel.
static __global__ void NameBadIndexKernel(const int64_t* rows,
                                          GpuBadIndex* bad_index) {
  if (threadIdx.x == 0 && bad_index->position >= 0) {
    bad_index->index = rows[bad_index->position];
  }
}

// --- Occurrences -------------------------------------------------------------

inline constexpr int kPositionBits = 40;
inline constexpr uint64_t kPositionMask = (uint64_t{1} << kPositionBits) - 1;

// Some of the pieces: as many as fit into a kernel's arguments.
template <typename T>
struct PiecesBatch {
  static constexpr int kMaxPieces = 64;

  int first;  // the number of the first piece
  int num_pieces;
  GpuRowsPiece<T> pieces[kMaxPieces];
  // Where the occurrences of each piece begin among those of all pieces, and
  // where the last ones end.
  int64_t begins[kMaxPieces + 1];
};

// Sets the batch to the pieces that follow those of the batch before; at first
// there were none.
template <typename T>
PiecesBatch<T> NextBatch(const std::vector<GpuRowsPiece<T>>& pieces,
                         const PiecesBatch<T>& before) {
  static_assert(sizeof(PiecesBatch<T>) <= 4000);  // CUDA allows 4096 in all.
  PiecesBatch<T> batch = {};
  batch.first = before.first + before.num_pieces;
  batch.num_pieces = std::min(static_cast<int>(pieces.size()) - batch.first,
                              PiecesBatch<T>::kMaxPieces);
  batch.begins[0] = before.begins[before.num_pieces];
  for (int i = 0; i < batch.num_pieces; ++i) {
    batch.pieces[i] = pieces[static_cast<size_t>(batch.first) + i];
    batch.begins[i + 1] = batch.begins[i] + batch.pieces[i].num_rows;
  }
  return batch;
}

// Writes pieces into the table of all, and their occurrences.
template <typename T>
__global__ __launch_bounds__(kBlockThreads) void ListPiecesKernel(
    const PiecesBatch<T> batch, GpuRowsPiece<T>* pieces, uint64_t* rows,
    uint64_t* places) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  for (int64_t i = first; i < batch.num_pieces; i += stride) {
    pieces[batch.first + i] = batch.pieces[i];
  }
  const int64_t end = batch.begins[batch.num_pieces];
  int piece = 0;
  for (int64_t i = batch.begins[0] + first; i < end; i += stride) {
    while (batch.begins[piece + 1] <= i) {
      ++piece;
    }
    const int64_t position = i - batch.begins[piece];
    rows[i] = static_cast<uint64_t>(batch.pieces[piece].rows[position]);
    places[i] = (static_cast<uint64_t>(batch.first + piece) << kPositionBits) +
                static_cast<uint64_t>(position);
  }
}

// Marks where a row's occurrences begin.
static __global__ __launch_bounds__(kBlockThreads) void MarkBeginsKernel(
    const uint64_t* rows, int64_t num_occurrences, uint8_t* is_begin) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  for (int64_t i =
           static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
       i < num_occurrences; i += stride) {
    is_begin[i] = i == 0 || rows[i] != rows[i - 1] ? 1 : 0;
  }
}

// --- Sums --------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ const GpuRowsPiece<T>& PieceAt(
    const GpuSortedRows<T>& sorted, int64_t occurrence) {
  return sorted.pieces[sorted.places[occurrence] >> kPositionBits];
}

template <typename T>
__device__ __forceinline__ int64_t PositionAt(const GpuSortedRows<T>& sorted,
                                              int64_t occurrence) {
  return static_cast<int64_t>(sorted.places[occurrence] & kPositionMask);
}

// Loads elements of an occurrence, from `column` on.
template <int kWidth, typename T>
__device__ __forceinline__ Vector<SlotType<T>, kWidth> LoadOccurrence(
    const GpuSortedRows<T>& sorted, int64_t occurrence, int64_t column) {
  const GpuRowsPiece<T>& piece = PieceAt(sorted, occurrence);
  const int64_t offset =
      PositionAt(sorted, occurrence) * sorted.row_size + column;
  return piece.gradient == kMergedRows
             ? LoadVector<kWidth>(piece.sums + offset)
             : LoadWidened<kWidth>(piece.values + offset);
}

// How many gradients of its row, whose occurrences begin at `begin`, an
// occurrence is the first of. This is 0 if the gradient has had the row before,
// since a row that occurs several times in one gradient counts once.
template <typename T>
__device__ __forceinline__ int32_t NewGradients(const GpuSortedRows<T>& sorted,
                                                int64_t begin,
                                                int64_t occurrence) {
  const GpuRowsPiece<T>& piece = PieceAt(sorted, occurrence);
  if (piece.gradient == kMergedRows) {
    return piece.num_gradients[PositionAt(sorted, occurrence)];
  }
  return occurrence == begin ||
                 PieceAt(sorted, occurrence - 1).gradient != piece.gradient
             ? 1
             : 0;
}

// Writes elements of a row's sum, from `column` on.
template <int kWidth, typename T>
__device__ __forceinline__ void WriteSum(
    const GpuReducedRows<T>& reduced, int64_t offset, int32_t num_gradients,
    const Vector<SlotType<T>, kWidth>& sum) {
  using Sum = SlotType<T>;
  if (reduced.values == nullptr) {
    StoreVector<kWidth>(sum, reduced.sums + offset);
    return;
  }
  Sum divisor = 1;
  if (reduced.reduction == Reduction::kCountedMean) {
    divisor = static_cast<Sum>(reduced.count);
  } else if (reduced.reduction == Reduction::kMean) {
    divisor = static_cast<Sum>(num_gradients);
  }
  Vector<T, kWidth> values;
  TF_SYNCREP_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    values.element[i] = Narrow<T>(sum.element[i] / divisor);
  }
  StoreVector<kWidth>(values, reduced.values + offset);
}

template <typename T>
__device__ __forceinline__ void WriteRow(const GpuSortedRows<T>& sorted,
                                         const GpuReducedRows<T>& reduced,
                                         int64_t row, int32_t num_gradients) {
  reduced.rows[row] = static_cast<int64_t>(sorted.rows[sorted.begins[row]]);
  if (reduced.num_gradients != nullptr) {
    reduced.num_gradients[row] = num_gradients;
  }
}

// How many threads of a block work on one row: 1, 2, 4, ... 32.
inline int LanesPerRow(int64_t row_size, int width) {
  int lanes = 1;
  while (lanes < 32 && int64_t{lanes} * width < row_size) {
    lanes *= 2;
  }
  return lanes;
}

// A block takes kBlockThreads / lanes rows at a time. The long rows among them
// are left to the end, when the whole block works on each.
template <int kWidth, typename T>
__global__ __launch_bounds__(kBlockThreads) void ReduceRowsKernel(
    GpuSortedRows<T> sorted, GpuReducedRows<T> reduced, int lanes) {
  using Sum = SlotType<T>;
  __shared__ int num_long_rows;
  __shared__ int64_t long_rows[kBlockThreads];
  __shared__ int long_row_gradients;
  const int groups = kBlockThreads / lanes;
  const int group = static_cast<int>(threadIdx.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const auto end_of = [&](int64_t row) {
    return row + 1 < reduced.num_rows ? sorted.begins[row + 1]
                                      : sorted.num_occurrences;
  };
  const int64_t stride = static_cast<int64_t>(gridDim.x) * groups;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * groups;
       first < reduced.num_rows; first += stride) {
    if (threadIdx.x == 0) {
      num_long_rows = 0;
    }
    __syncthreads();
    const int64_t row = first + group;
    if (row < reduced.num_rows) {
      const int64_t begin = sorted.begins[row];
      const int64_t end = end_of(row);
      if (end - begin >= kLongRow) {
        if (lane == 0) {
          long_rows[atomicAdd(&num_long_rows, 1)] = row;
        }
      } else {
        int32_t num_gradients = 0;
        for (int64_t i = begin; i < end; ++i) {
          num_gradients += NewGradients(sorted, begin, i);
        }
        if (lane == 0) {
          WriteRow(sorted, reduced, row, num_gradients);
        }
        for (int64_t column = int64_t{lane} * kWidth; column < sorted.row_size;
             column += int64_t{lanes} * kWidth) {
          auto sum = LoadOccurrence<kWidth>(sorted, begin, column);
          TF_SYNCREP_UNROLL_BY_4
          for (int64_t i = begin + 1; i < end; ++i) {
            const auto g = LoadOccurrence<kWidth>(sorted, i, column);
            TF_SYNCREP_UNROLL
            for (int k = 0; k < kWidth; ++k) {
              sum.element[k] += g.element[k];
            }
          }
          WriteSum<kWidth>(reduced, row * sorted.row_size + column,
                           num_gradients, sum);
        }
      }
    }
    __syncthreads();
    for (int i = 0; i < num_long_rows; ++i) {
      const int64_t long_row = long_rows[i];
      const int64_t begin = sorted.begins[long_row];
      const int64_t end = end_of(long_row);
      if (threadIdx.x == 0) {
        long_row_gradients = 0;
      }
      __syncthreads();
      int num_new = 0;
      for (int64_t k = begin + threadIdx.x; k < end; k += kBlockThreads) {
        num_new += NewGradients(sorted, begin, k);
      }
      atomicAdd(&long_row_gradients, num_new);
      __syncthreads();
      const int32_t num_gradients = long_row_gradients;
      if (threadIdx.x == 0) {
        WriteRow(sorted, reduced, long_row, num_gradients);
      }
      SumLongRow<kWidth, Sum>(
          begin, end, sorted.row_size,
          [&](int64_t occurrence, int64_t column) {
            return LoadOccurrence<kWidth>(sorted, occurrence, column);
          },
          [&](int64_t column, Sum sum) {
            const Vector<Sum, 1> one = {sum};
            WriteSum<1>(reduced, long_row * sorted.row_size + column,
                        num_gradients, one);
          });
      __syncthreads();  // before long_row_gradients is 0 again
    }
    __syncthreads();  // before num_long_rows is 0 again
  }
}

}  // namespace gpu
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_SPARSE_KERNELS_H_
