// The names by which code without CUDA headers speaks of the GPU.

#ifndef TF_SYNCREP_CC_LIB_CUDA_GPU_STREAM_H_
#define TF_SYNCREP_CC_LIB_CUDA_GPU_STREAM_H_

// As CUDA's headers declare it.
struct CUstream_st;

namespace tf_syncrep {

// The same type as cudaStream_t.
using GpuStream = CUstream_st*;

// What CUDA says of a launch that failed; null for one that did not. A failure
// of the kernel itself shows later, to whoever next waits for the stream.
using GpuError = const char*;

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_GPU_STREAM_H_
