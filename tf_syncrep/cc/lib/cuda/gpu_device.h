// The GPU that a thread launches kernels on.

#ifndef TF_SYNCREP_CC_LIB_CUDA_GPU_DEVICE_H_
#define TF_SYNCREP_CC_LIB_CUDA_GPU_DEVICE_H_

#include "tf_syncrep/cc/lib/cuda/gpu_stream.h"

namespace tf_syncrep {

// A stream, and the number of the GPU that it belongs to.
struct GpuQueue {
  GpuStream stream = nullptr;
  int device = 0;
};

// The number of the GPU that is current on this thread.
GpuError CurrentGpu(int* device);

// Makes a GPU current on this thread, which it stays. For threads that other
// code has not given one: where the right one is current nothing happens.
GpuError UseGpu(int device);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_GPU_DEVICE_H_
