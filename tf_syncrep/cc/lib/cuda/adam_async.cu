#include <atomic>
#include <cub/device/device_radix_sort.cuh>
#include <type_traits>

#include "tf_syncrep/cc/lib/cuda/adam_async.h"
#include "tf_syncrep/cc/lib/cuda/adam_async_kernels.h"
#include "tf_syncrep/cc/lib/cuda/launch.h"

namespace tf_syncrep {
namespace {

using gpu::kBlockThreads;
using gpu::kVectorWidth;
using gpu::RowsPlan;

int NextArrivalCounter() {
  static std::atomic<unsigned int> next{0};
  return static_cast<int>(next.fetch_add(1) % gpu::kNumArrivalCounters);
}

template <int kWidth, typename T>
GpuError LaunchDense(const GpuAdamAsync<T>& arguments, int64_t size,
                     const T* grad, GpuStream stream) {
  int blocks = 1;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(
      gpu::NumBlocksFor(gpu::DenseKernel<kWidth, T>, kBlockThreads, size,
                        kBlockThreads * kWidth, &blocks));
  gpu::DenseKernel<kWidth, T><<<blocks, kBlockThreads, 0, stream>>>(
      arguments, NextArrivalCounter(), size, grad);
  return gpu::ErrorOf(cudaGetLastError());
}

// The parts of the workspace, one after the other, each aligned for any use.
struct Workspace {
  uint64_t* keys;
  uint64_t* sorted_keys;
  uint32_t* positions;
  uint32_t* sorted_positions;
  char* sort_memory;
  size_t sort_bytes;
  size_t total_bytes;
};

// With `base` null, only the sizes count.
GpuError LayOutWorkspace(const GpuSparseRows& rows, void* base,
                         Workspace* workspace) {
  size_t used = 0;
  const auto take = [&](auto** part, size_t count) {
    using Part = std::remove_reference_t<decltype(*part)>;
    *part = reinterpret_cast<Part>(static_cast<char*>(base) + used);
    used += (count * sizeof(**part) + 255) / 256 * 256;
  };
  const auto n = static_cast<size_t>(rows.num_indices);
  take(&workspace->keys, n);
  take(&workspace->sorted_keys, n);
  take(&workspace->positions, n);
  take(&workspace->sorted_positions, n);
  workspace->sort_bytes = 0;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(cub::DeviceRadixSort::SortPairs(
      nullptr, workspace->sort_bytes, workspace->keys, workspace->sorted_keys,
      workspace->positions, workspace->sorted_positions,
      static_cast<int>(rows.num_indices), /*begin_bit=*/0,
      gpu::NumKeyBits(rows.num_rows)));
  take(&workspace->sort_memory, workspace->sort_bytes);
  workspace->total_bytes = used;
  return nullptr;
}

template <int kWidth, typename T>
GpuError LaunchRows(gpu::RowsArguments<T> arguments, GpuStream stream) {
  int max_blocks = 1;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(gpu::MaxResidentBlocks(
      gpu::RowsKernel<kWidth, T>, kBlockThreads, &max_blocks));
  const int64_t num_indices = arguments.rows.num_indices;
  arguments.plan =
      gpu::PlanRows(num_indices, arguments.rows.row_size, kWidth, max_blocks);
  const int64_t chunk = gpu::ChunkSize(arguments.plan);
  const int blocks =
      gpu::NumBlocks((num_indices + chunk - 1) / chunk, max_blocks);
  gpu::RowsKernel<kWidth, T><<<blocks, kBlockThreads, 0, stream>>>(arguments);
  return gpu::ErrorOf(cudaGetLastError());
}

}  // namespace

template <typename T>
GpuError ApplyAdamAsyncOnGpu(const GpuAdamAsync<T>& arguments, int64_t size,
                             const T* grad, GpuStream stream) {
  return gpu::AreAligned(arguments.var, arguments.m, arguments.v, grad)
             ? LaunchDense<kVectorWidth<T>>(arguments, size, grad, stream)
             : LaunchDense<1>(arguments, size, grad, stream);
}

GpuError SparseAdamAsyncWorkspaceBytes(const GpuSparseRows& rows,
                                       size_t* bytes) {
  Workspace workspace;
  const GpuError error = LayOutWorkspace(rows, nullptr, &workspace);
  *bytes = workspace.total_bytes;
  return error;
}

template <typename T>
GpuError SparseApplyAdamAsyncOnGpu(const GpuAdamAsync<T>& arguments,
                                   const GpuSparseRows& rows, const T* grad,
                                   void* workspace, size_t workspace_bytes,
                                   GpuBadIndex* bad_index, GpuStream stream) {
  if (bad_index != nullptr) {
    // All bits are set, which is -1.
    TF_SYNCREP_RETURN_IF_CUDA_ERROR(
        cudaMemsetAsync(bad_index, 0xff, sizeof(GpuBadIndex), stream));
  }
  if (rows.num_indices == 0) {
    return nullptr;
  }
  if (rows.num_indices > kMaxGpuIndices) {
    return "too many indices";
  }
  Workspace parts;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(LayOutWorkspace(rows, workspace, &parts));
  if (parts.total_bytes > workspace_bytes) {
    return "the workspace is too small";
  }
  int blocks = 1;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(
      gpu::NumBlocksFor(gpu::PrepareRowsKernel, kBlockThreads, rows.num_indices,
                        kBlockThreads, &blocks));
  gpu::PrepareRowsKernel<<<blocks, kBlockThreads, 0, stream>>>(
      rows, parts.keys, parts.positions, bad_index);
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(cudaGetLastError());
  // The sort is stable: equal rows stay in their order.
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(cub::DeviceRadixSort::SortPairs(
      parts.sort_memory, parts.sort_bytes, parts.keys, parts.sorted_keys,
      parts.positions, parts.sorted_positions,
      static_cast<int>(rows.num_indices), /*begin_bit=*/0,
      gpu::NumKeyBits(rows.num_rows), stream));
  const gpu::RowsArguments<T> row_arguments = {arguments,
                                               rows,
                                               grad,
                                               parts.sorted_keys,
                                               parts.sorted_positions,
                                               bad_index,
                                               RowsPlan{},
                                               NextArrivalCounter()};
  const bool has_whole_vectors = rows.row_size % kVectorWidth<T> == 0;
  return has_whole_vectors &&
                 gpu::AreAligned(arguments.var, arguments.m, arguments.v, grad)
             ? LaunchRows<kVectorWidth<T>>(row_arguments, stream)
             : LaunchRows<1>(row_arguments, stream);
}

#define TF_SYNCREP_INSTANTIATE(T)                                            \
  template GpuError ApplyAdamAsyncOnGpu<T>(const GpuAdamAsync<T>&, int64_t,  \
                                           const T*, GpuStream);             \
  template GpuError SparseApplyAdamAsyncOnGpu<T>(                            \
      const GpuAdamAsync<T>&, const GpuSparseRows&, const T*, void*, size_t, \
      GpuBadIndex*, GpuStream)

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
