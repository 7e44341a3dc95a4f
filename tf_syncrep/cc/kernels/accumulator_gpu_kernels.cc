// The kernel that makes accumulators of dense gradients in a GPU's memory.
//
// All of an accumulator's work is put into the one stream in which the device's
// ops compute, by threads of ops, under the accumulator's lock where the order
// matters. So gradients add up in their order of arrival, and a result is
// complete for the ops that use it next. The bookkeeping is on the host, as for
// sums in the host's memory.

#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/gpu_device.h"
#include "tf_syncrep/cc/tf/gpu_context.h"
#include "tf_syncrep/cc/tf/lib_type.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

template <typename T>
class DenseAccumulatorGpuOp final : public AccumulatorOp {
 public:
  explicit DenseAccumulatorGpuOp(OpKernelConstruction* ctx)
      : AccumulatorOp(ctx, /*is_sparse=*/false) {}

  void Compute(OpKernelContext* ctx) override {
    std::call_once(once_, [&] { status_ = GpuQueueOf(ctx, &queue_); });
    OP_REQUIRES_OK(ctx, status_);
    AccumulatorOp::Compute(ctx);
  }

 private:
  AccumulatorResource::SumMaker MakeSumMaker() override {
    return [queue = queue_] {
      return std::make_unique<GpuDenseGradientSum<LibType<T>>>(queue);
    };
  }

  std::once_flag once_;  // guards the next two fields
  GpuQueue queue_;
  absl::Status status_;
};

#define TF_SYNCREP_REGISTER(T)                                \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>DenseAccumulator")    \
                              .Device(tensorflow::DEVICE_GPU) \
                              .TypeConstraint<T>("dtype")     \
                              .HostMemory("handle"),          \
                          DenseAccumulatorGpuOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
