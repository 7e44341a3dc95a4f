// What GPU kernels need of their op's context. Without CUDA's headers.

#ifndef TF_SYNCREP_CC_TF_GPU_CONTEXT_H_
#define TF_SYNCREP_CC_TF_GPU_CONTEXT_H_

#include <functional>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/lib/cuda/gpu_device.h"
#include "tf_syncrep/cc/lib/cuda/gpu_stream.h"

namespace tf_syncrep {

// The stream in which all of the device's ops compute.
GpuStream GpuStreamOf(tensorflow::OpKernelContext* ctx);

// The same stream with its GPU's number, for threads other than the op's.
absl::Status GpuQueueOf(tensorflow::OpKernelContext* ctx, GpuQueue* queue);

// An Internal error with CUDA's message, unless `error` is null.
absl::Status LaunchStatus(GpuError error);

// Copies `source`, on the GPU, to the host when the stream has come so far;
// then calls `done`, once, on another thread as a rule. Where the copy fails
// its tensor is not to be used.
void CopyToHost(
    tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& source,
    std::function<void(const absl::Status&, const tensorflow::Tensor&)> done);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_GPU_CONTEXT_H_
