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

// Makes a GPU current on this thread, and leaves it current. For threads on
// which nobody has chosen a GPU; it does nothing if the GPU is current already.
GpuError UseGpu(int device);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_GPU_DEVICE_H_
