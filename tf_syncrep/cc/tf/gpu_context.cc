#include "tf_syncrep/cc/tf/gpu_context.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/device_base.h"
#include "xla/stream_executor/stream.h"

namespace tf_syncrep {

using tensorflow::OpKernelContext;

GpuStream GpuStreamOf(OpKernelContext* ctx) {
  return static_cast<GpuStream>(
      ctx->op_device_context()->stream()->platform_specific_handle().stream);
}

absl::Status GpuQueueOf(OpKernelContext* ctx, GpuQueue* queue) {
  queue->stream = GpuStreamOf(ctx);
  // TensorFlow has made the op's GPU the current one.
  const GpuError error = CurrentGpu(&queue->device);
  return error == nullptr
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat(
                   "CUDA does not tell which GPU is current: ", error));
}

absl::Status LaunchStatus(GpuError error) {
  return error == nullptr ? absl::OkStatus()
                          : absl::InternalError(absl::StrCat(
                                "A CUDA kernel was not launched: ", error));
}

}  // namespace tf_syncrep
