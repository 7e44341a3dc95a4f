// The names by which code without CUDA headers speaks of the GPU.

#ifndef TF_SYNCREP_CC_LIB_CUDA_GPU_STREAM_H_
#define TF_SYNCREP_CC_LIB_CUDA_GPU_STREAM_H_

// Declared as in CUDA's headers.
struct CUstream_st;

namespace tf_syncrep {

// The same type as cudaStream_t.
using GpuStream = CUstream_st*;

// CUDA's message for a launch that failed; null if it did not. If the kernel
// itself fails, the next call that waits for the stream returns the error.
using GpuError = const char*;

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_GPU_STREAM_H_
