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
#include "tf_syncrep/cc/tf/scalars.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

template <typename T, bool kIsSparse>
class HostAccumulatorOp final : public AccumulatorOp {
 public:
  explicit HostAccumulatorOp(OpKernelConstruction* ctx)
      : AccumulatorOp(ctx, kIsSparse) {}

 private:
  AccumulatorResource::SumMaker MakeSumMaker() override {
    if constexpr (kIsSparse) {
      return [memory = std::make_shared<SparseSumMemory>()] {
        return std::make_unique<SparseGradientSum<LibType<T>>>(memory);
      };
    } else {
      return [] { return std::make_unique<CpuDenseGradientSum<LibType<T>>>(); };
    }
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
#define TF_SYNCREP_REGISTER(T)                                        \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>DenseAccumulator")            \
                              .Device(tensorflow::DEVICE_CPU)         \
                              .TypeConstraint<T>("dtype"),            \
                          HostAccumulatorOp<T, /*kIsSparse=*/false>); \
  TF_SYNCREP_REGISTER_CPU_AND_GPU(Name("Syncrep>SparseAccumulator")   \
                                      .TypeConstraint<T>("dtype")     \
                                      .HostMemory("handle"),          \
                                  HostAccumulatorOp<T, /*kIsSparse=*/true>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

TF_SYNCREP_REGISTER_CPU_AND_GPU(Name("Syncrep>AccumulatorSetGlobalStep")
                                    .HostMemory("handle")
                                    .HostMemory("new_global_step"),
                                AccumulatorSetGlobalStepOp);
TF_SYNCREP_REGISTER_CPU_AND_GPU(Name("Syncrep>AccumulatorNumAccumulated")
                                    .HostMemory("handle")
                                    .HostMemory("num_accumulated"),
                                AccumulatorNumAccumulatedOp);
TF_SYNCREP_REGISTER_CPU_AND_GPU(Name("Syncrep>AccumulatorStats")
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
