#include "tf_syncrep/cc/tf/gpu_context.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/device_base.h"
#include "xla/stream_executor/stream.h"

namespace tf_syncrep {

using tensorflow::AllocatorAttributes;
using tensorflow::Device;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

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

void CopyToHost(OpKernelContext* ctx, const Tensor& source,
                std::function<void(const absl::Status&, const Tensor&)> done) {
  AllocatorAttributes on_host;
  on_host.set_on_host(true);
  on_host.set_gpu_compatible(true);
  // The copy is kept alive until it is complete.
  const auto copy = std::make_shared<Tensor>();
  const auto kept_source = std::make_shared<Tensor>(source);
  absl::Status status =
      ctx->allocate_temp(source.dtype(), source.shape(), copy.get(), on_host);
  if (!status.ok()) {
    done(status, *copy);
    return;
  }
  ctx->op_device_context()->CopyDeviceTensorToCPU(
      kept_source.get(), "copy_to_host", static_cast<Device*>(ctx->device()),
      copy.get(),
      [copy, kept_source, done = std::move(done)](const absl::Status& status) {
        done(status, *copy);
      });
}

}  // namespace tf_syncrep
