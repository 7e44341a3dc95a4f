// What code without CUDA headers says of the GPU, and which one a thread
// launches kernels on.

#ifndef TF_SYNCREP_CC_LIB_CUDA_GPU_DEVICE_H_
#define TF_SYNCREP_CC_LIB_CUDA_GPU_DEVICE_H_

// Declared as in CUDA's headers.
struct CUstream_st;

namespace tf_syncrep {

// The same type as cudaStream_t.
using GpuStream = CUstream_st*;

// CUDA's message for a launch that failed; null if it did not. If the kernel
// itself fails, the next call that waits for the stream returns the error.
using GpuError = const char*;

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
