// What all launches share: errors and the sizes of grids. For CUDA sources
// only.

#ifndef TF_SYNCREP_CC_LIB_CUDA_LAUNCH_H_
#define TF_SYNCREP_CC_LIB_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tf_syncrep/cc/lib/cuda/gpu_device.h"

namespace tf_syncrep {
namespace gpu {

inline GpuError ErrorOf(cudaError_t code) {
  return code == cudaSuccess ? nullptr : cudaGetErrorString(code);
}
inline GpuError ErrorOf(GpuError error) { return error; }

// `expression` is a call of CUDA, or one that returns a GpuError.
#define TF_SYNCREP_RETURN_IF_CUDA_ERROR(expression) \
  do {                                              \
    const ::tf_syncrep::GpuError error =            \
        ::tf_syncrep::gpu::ErrorOf(expression);     \
    if (error != nullptr) {                         \
      return error;                                 \
    }                                               \
  } while (false)

// How many blocks of a kernel the current device runs at one time. In a grid of
// that size, in which each block has an equal share of the work, all blocks end
// at about the same time.
template <typename Kernel>
cudaError_t MaxResidentBlocks(Kernel kernel, int block_threads, int* blocks) {
  int device;
  int processors;
  int blocks_per_processor;
  cudaError_t code = cudaGetDevice(&device);
  if (code == cudaSuccess) {
    code = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount,
                                  device);
  }
  if (code == cudaSuccess) {
    code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks_per_processor, kernel, block_threads, /*dynamicSMemSize=*/0);
  }
  if (code == cudaSuccess) {
    *blocks = std::max(processors * blocks_per_processor, 1);
  }
  return code;
}

// As many blocks as there are parts, from 1 to `max_blocks`.
inline int NumBlocks(int64_t num_parts, int max_blocks) {
  return static_cast<int>(
      std::clamp<int64_t>(num_parts, 1, static_cast<int64_t>(max_blocks)));
}

// How many blocks to launch for `num_items` items, when each block works on
// `per_block` of them at a time.
template <typename Kernel>
GpuError NumBlocksFor(Kernel kernel, int block_threads, int64_t num_items,
                      int64_t per_block, int* blocks) {
  int max_blocks = 1;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(
      MaxResidentBlocks(kernel, block_threads, &max_blocks));
  *blocks = NumBlocks((num_items + per_block - 1) / per_block, max_blocks);
  return nullptr;
}

// Whether vectors of 16 bytes may be read and written at all these addresses.
template <typename... Pointers>
bool AreAligned(Pointers... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace gpu
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_LAUNCH_H_
