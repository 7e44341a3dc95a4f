#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include "tf_syncrep/cc/lib/cuda/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_sparse_kernels.h"
#include "tf_syncrep/cc/lib/cuda/launch.h"

namespace tf_syncrep {
namespace {

using gpu::kBlockThreads;

// The parts of the workspace, one after the other.
template <typename T>
struct Workspace {
  uint64_t* rows;
  uint64_t* sorted_rows;
  uint64_t* places;
  uint64_t* sorted_places;
  uint8_t* is_begin;
  int64_t* begins;
  GpuRowsPiece<T>* pieces;
  void* cub_memory;
  size_t cub_bytes;
  size_t total_bytes;
};

// With `base` null, only the sizes count.
template <typename T>
GpuError LayOut(const GpuSortedRows<T>& sorted, void* base,
                Workspace<T>* workspace) {
  gpu::WorkspaceParts parts(base);
  const auto n = static_cast<size_t>(sorted.num_occurrences);
  workspace->rows = parts.Take<uint64_t>(n);
  workspace->sorted_rows = parts.Take<uint64_t>(n);
  workspace->places = parts.Take<uint64_t>(n);
  workspace->sorted_places = parts.Take<uint64_t>(n);
  workspace->is_begin = parts.Take<uint8_t>(n);
  workspace->begins = parts.Take<int64_t>(n);
  workspace->pieces =
      parts.Take<GpuRowsPiece<T>>(static_cast<size_t>(sorted.num_pieces));
  size_t sort_bytes = 0;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(cub::DeviceRadixSort::SortPairs(
      nullptr, sort_bytes, workspace->rows, workspace->sorted_rows,
      workspace->places, workspace->sorted_places,
      static_cast<int>(sorted.num_occurrences), /*begin_bit=*/0,
      sorted.num_key_bits));
  size_t select_bytes = 0;
  int64_t* no_count = nullptr;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(cub::DeviceSelect::Flagged(
      nullptr, select_bytes, thrust::counting_iterator<int64_t>(0),
      workspace->is_begin, workspace->begins, no_count,
      static_cast<int>(sorted.num_occurrences)));
  workspace->cub_bytes = std::max(sort_bytes, select_bytes);
  workspace->cub_memory = parts.Take<char>(workspace->cub_bytes);
  workspace->total_bytes = parts.total_bytes();
  return nullptr;
}

template <int kWidth, typename T>
GpuError LaunchReduce(const GpuSortedRows<T>& sorted,
                      const GpuReducedRows<T>& reduced, GpuStream stream) {
  const int lanes = gpu::LanesPerRow(sorted.row_size, kWidth);
  int blocks = 1;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(
      gpu::NumBlocksFor(gpu::ReduceRowsKernel<kWidth, T>, kBlockThreads,
                        reduced.num_rows, kBlockThreads / lanes, &blocks));
  gpu::ReduceRowsKernel<kWidth, T>
      <<<blocks, kBlockThreads, 0, stream>>>(sorted, reduced, lanes);
  return gpu::ErrorOf(cudaGetLastError());
}

}  // namespace

GpuError CopyRowsOnGpu(const void* indices, bool is_int64, int64_t num_indices,
                       int64_t limit, int64_t* rows, GpuBadIndex* bad_index,
                       GpuStream stream) {
  // All bits are set, which is -1.
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(
      cudaMemsetAsync(bad_index, 0xff, sizeof(GpuBadIndex), stream));
  int blocks = 1;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(gpu::NumBlocksFor(
      gpu::CopyRowsKernel, kBlockThreads, num_indices, kBlockThreads, &blocks));
  gpu::CopyRowsKernel<<<blocks, kBlockThreads, 0, stream>>>(
      {indices, is_int64, num_indices, limit}, rows, bad_index);
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(cudaGetLastError());
  gpu::NameBadIndexKernel<<<1, 1, 0, stream>>>(rows, bad_index);
  return gpu::ErrorOf(cudaGetLastError());
}

GpuError CopyOnGpu(const void* from, size_t bytes, void* to, GpuStream stream) {
  return gpu::ErrorOf(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

GpuError ReadFromGpu(const void* from, size_t bytes, void* to,
                     GpuStream stream) {
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
  return gpu::ErrorOf(cudaStreamSynchronize(stream));
}

template <typename T>
GpuError SortRowsWorkspaceBytes(const GpuSortedRows<T>& sorted, size_t* bytes) {
  Workspace<T> workspace;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(LayOut<T>(sorted, nullptr, &workspace));
  *bytes = workspace.total_bytes;
  return nullptr;
}

template <typename T>
GpuError SortRowsOnGpu(const std::vector<GpuRowsPiece<T>>& pieces,
                       void* workspace, size_t workspace_bytes,
                       int64_t* num_rows, GpuSortedRows<T>* sorted,
                       GpuStream stream) {
  Workspace<T> parts;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(LayOut<T>(*sorted, workspace, &parts));
  if (parts.total_bytes > workspace_bytes) {
    return "the workspace is too small";
  }
  for (auto batch = gpu::NextBatch<T>(pieces, {}); batch.num_pieces > 0;
       batch = gpu::NextBatch(pieces, batch)) {
    int blocks = 1;
    TF_SYNCREP_RETURN_IF_CUDA_ERROR(
        gpu::NumBlocksFor(gpu::ListPiecesKernel<T>, kBlockThreads,
                          batch.begins[batch.num_pieces] - batch.begins[0],
                          kBlockThreads, &blocks));
    gpu::ListPiecesKernel<T><<<blocks, kBlockThreads, 0, stream>>>(
        batch, parts.pieces, parts.rows, parts.places);
    TF_SYNCREP_RETURN_IF_CUDA_ERROR(cudaGetLastError());
  }
  const int n = static_cast<int>(sorted->num_occurrences);
  // The sort is stable: equal rows stay in their order of arrival.
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(cub::DeviceRadixSort::SortPairs(
      parts.cub_memory, parts.cub_bytes, parts.rows, parts.sorted_rows,
      parts.places, parts.sorted_places, n, /*begin_bit=*/0,
      sorted->num_key_bits, stream));
  int blocks = 1;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(
      gpu::NumBlocksFor(gpu::MarkBeginsKernel, kBlockThreads,
                        sorted->num_occurrences, kBlockThreads, &blocks));
  gpu::MarkBeginsKernel<<<blocks, kBlockThreads, 0, stream>>>(
      parts.sorted_rows, sorted->num_occurrences, parts.is_begin);
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(cudaGetLastError());
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(cub::DeviceSelect::Flagged(
      parts.cub_memory, parts.cub_bytes, thrust::counting_iterator<int64_t>(0),
      parts.is_begin, parts.begins, num_rows, n, stream));
  sorted->rows = parts.sorted_rows;
  sorted->places = parts.sorted_places;
  sorted->begins = parts.begins;
  sorted->pieces = parts.pieces;
  return nullptr;
}

template <typename T>
GpuError ReduceRowsOnGpu(const GpuSortedRows<T>& sorted,
                         const GpuReducedRows<T>& reduced, GpuStream stream) {
  return sorted.has_vectors && gpu::AreAligned(reduced.values, reduced.sums)
             ? LaunchReduce<gpu::kVectorWidth<T>>(sorted, reduced, stream)
             : LaunchReduce<1>(sorted, reduced, stream);
}

#define TF_SYNCREP_INSTANTIATE(T)                                         \
  template GpuError SortRowsWorkspaceBytes<T>(const GpuSortedRows<T>&,    \
                                              size_t*);                   \
  template GpuError SortRowsOnGpu<T>(const std::vector<GpuRowsPiece<T>>&, \
                                     void*, size_t, int64_t*,             \
                                     GpuSortedRows<T>*, GpuStream);       \
  template GpuError ReduceRowsOnGpu<T>(const GpuSortedRows<T>&,           \
                                       const GpuReducedRows<T>&, GpuStream)

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
