// What GPU kernels need from their op's context, without CUDA's headers.

#ifndef TF_SYNCREP_CC_TF_GPU_CONTEXT_H_
#define TF_SYNCREP_CC_TF_GPU_CONTEXT_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_syncrep/cc/lib/cuda/gpu_device.h"

namespace tf_syncrep {

// Returns the stream in which all of the device's ops compute.
GpuStream GpuStreamOf(tensorflow::OpKernelContext* ctx);

// Returns the same stream with its GPU's number, for threads other than the
// op's.
absl::Status GpuQueueOf(tensorflow::OpKernelContext* ctx, GpuQueue* queue);

// Returns an Internal error with CUDA's message, unless `error` is null.
absl::Status LaunchStatus(GpuError error);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_GPU_CONTEXT_H_
