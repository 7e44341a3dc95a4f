// Kernels of accumulators whose gradients are in the GPU's memory.
//
// All of an accumulator's work is put into the one stream in which the device's
// ops compute, under the accumulator's lock where order matters: so gradients
// add up in their order of arrival, and a result is there for whatever uses it
// next. Bookkeeping is on the host, and the same as for the host's memory.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_apply_op.h"
#include "tf_syncrep/cc/kernels/accumulator_op.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/kernels/accumulator_take_op.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/gpu_device.h"
#include "tf_syncrep/cc/tf/gpu_context.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelContext;

// Sums in the GPU's memory.
class GpuAccumulatorMaker {
 public:
  absl::Status Init(OpKernelContext* ctx) { return GpuQueueOf(ctx, &queue_); }

  AccumulatorResource* Make(const AccumulatorSpec& spec) const {
    // TensorFlow's allocator has memory that was used before at hand.
    return new AccumulatorResource(spec, SumMaker(spec),
                                   AccumulatorResource::ResultMemory::kNew);
  }

 private:
  AccumulatorResource::SumMaker SumMaker(const AccumulatorSpec& spec) const {
    return VisitAccumulatorType(
        spec.dtype, [&](auto type) -> AccumulatorResource::SumMaker {
          using T = decltype(type);
          return [queue = queue_] {
            return std::make_unique<GpuDenseGradientSum<T>>(queue);
          };
        });
  }

  GpuQueue queue_;
};

// Handles, steps and counts are on the host.
REGISTER_KERNEL_BUILDER(
    Name("Syncrep>DenseAccumulator")
        .Device(tensorflow::DEVICE_GPU)
        .HostMemory("handle"),
    AccumulatorOp</*kIsSparse=*/false, GpuAccumulatorMaker>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorSetGlobalStep")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("new_global_step"),
                        AccumulatorSetGlobalStepOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorNumAccumulated")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("num_accumulated"),
                        AccumulatorNumAccumulatedOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorStats")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("step")
                            .HostMemory("held")
                            .HostMemory("pushed")
                            .HostMemory("accepted")
                            .HostMemory("stale")
                            .HostMemory("voided")
                            .HostMemory("taken")
                            .HostMemory("takes"),
                        AccumulatorStatsOp);

#define TF_SYNCREP_REGISTER(T)                                      \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorApplyDense")     \
                              .Device(tensorflow::DEVICE_GPU)       \
                              .TypeConstraint<T>("dtype")           \
                              .HostMemory("handle")                 \
                              .HostMemory("local_step")             \
                              .HostMemory("accepted"),              \
                          AccumulatorApplyDenseOp<T>);              \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeDense")      \
                              .Device(tensorflow::DEVICE_GPU)       \
                              .TypeConstraint<T>("dtype")           \
                              .HostMemory("handle")                 \
                              .HostMemory("num_required"),          \
                          AccumulatorTakeOp<T, DenseOutput>);       \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeRoundDense") \
                              .Device(tensorflow::DEVICE_GPU)       \
                              .TypeConstraint<T>("dtype")           \
                              .HostMemory("handle")                 \
                              .HostMemory("round")                  \
                              .HostMemory("num_gradients"),         \
                          AccumulatorTakeRoundOp<T, DenseOutput>)

TF_SYNCREP_REGISTER(Eigen::half);
TF_SYNCREP_REGISTER(Eigen::bfloat16);
TF_SYNCREP_REGISTER(float);
TF_SYNCREP_REGISTER(double);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
