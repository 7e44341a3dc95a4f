// Kernels that make accumulators in the host's memory, set their step and read
// their counts.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/logging.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/scalar_input.h"
#include "tf_syncrep/cc/tf/scalar_output.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

template <typename T>
class DenseAccumulatorOp final : public AccumulatorOp {
 public:
  explicit DenseAccumulatorOp(OpKernelConstruction* ctx)
      : AccumulatorOp(ctx, /*is_sparse=*/false) {}

 private:
  AccumulatorResource::SumMaker MakeSumMaker() override {
    return [] { return std::make_unique<CpuDenseGradientSum<LibType<T>>>(); };
  }
};

template <typename T>
class SparseAccumulatorOp final : public AccumulatorOp {
 public:
  explicit SparseAccumulatorOp(OpKernelConstruction* ctx)
      : AccumulatorOp(ctx, /*is_sparse=*/true) {}

 private:
  AccumulatorResource::SumMaker MakeSumMaker() override {
    return [memory = std::make_shared<SparseSumMemory>()] {
      return std::make_unique<SparseGradientSum<LibType<T>>>(memory);
    };
  }
};

absl::Status SetGlobalStep(OpKernelContext* ctx,
                           AccumulatorResource& resource) {
  int64_t step = 0;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "new_global_step", &step));
  const int64_t previous = resource.accumulator().SetStep(step);
  if (step < previous && resource.spec().mode == AccumulatorMode::kStep) {
    LOG(WARNING) << "The global step of an accumulator goes back from "
                 << previous << " to " << step;
  }
  return absl::OkStatus();
}

using AccumulatorSetGlobalStepOp = CallOp<AccumulatorResource, SetGlobalStep>;

absl::Status NumAccumulated(OpKernelContext* ctx,
                            AccumulatorResource& resource) {
  // Every held gradient takes memory, so there are too few to overflow this.
  const auto num_held = static_cast<int32_t>(resource.accumulator().num_held());
  return SetScalarOutput(ctx, 0, num_held);
}

using AccumulatorNumAccumulatedOp = CallOp<AccumulatorResource, NumAccumulated>;

absl::Status Stats(OpKernelContext* ctx, AccumulatorResource& resource) {
  const AccumulatorStats stats = resource.accumulator().stats();
  // The values are in the order of the op's outputs.
  const int64_t values[] = {stats.step,     stats.held,  stats.pushed,
                            stats.accepted, stats.stale, stats.voided,
                            stats.taken,    stats.takes, stats.bytes};
  int index = 0;
  for (const int64_t value : values) {
    TF_RETURN_IF_ERROR(SetScalarOutput(ctx, index++, value));
  }
  return absl::OkStatus();
}

using AccumulatorStatsOp = CallOp<AccumulatorResource, Stats>;

// On GPUs, too, handles, steps and counts are in the host's memory, and so are
// all sparse gradients: TensorFlow copies those that come from a GPU.
#define TF_SYNCREP_REGISTER(T)                                \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>DenseAccumulator")    \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("dtype"),    \
                          DenseAccumulatorOp<T>);             \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>SparseAccumulator")   \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("dtype"),    \
                          SparseAccumulatorOp<T>);            \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>SparseAccumulator")   \
                              .Device(tensorflow::DEVICE_GPU) \
                              .TypeConstraint<T>("dtype")     \
                              .HostMemory("handle"),          \
                          SparseAccumulatorOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

REGISTER_KERNEL_BUILDER(
    Name("Syncrep>AccumulatorSetGlobalStep").Device(tensorflow::DEVICE_CPU),
    AccumulatorSetGlobalStepOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorSetGlobalStep")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("new_global_step"),
                        AccumulatorSetGlobalStepOp);
REGISTER_KERNEL_BUILDER(
    Name("Syncrep>AccumulatorNumAccumulated").Device(tensorflow::DEVICE_CPU),
    AccumulatorNumAccumulatedOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorNumAccumulated")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("num_accumulated"),
                        AccumulatorNumAccumulatedOp);
REGISTER_KERNEL_BUILDER(
    Name("Syncrep>AccumulatorStats").Device(tensorflow::DEVICE_CPU),
    AccumulatorStatsOp);
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
                            .HostMemory("takes")
                            .HostMemory("bytes"),
                        AccumulatorStatsOp);

}  // namespace
}  // namespace tf_syncrep
