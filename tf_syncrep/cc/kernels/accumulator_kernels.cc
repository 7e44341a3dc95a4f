// Kernels that make accumulators in the host's memory, set their step and read
// their counts.

#include <memory>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_syncrep/cc/kernels/accumulator_op.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernelContext;

// Makes accumulators with sums in the host's memory.
class CpuAccumulatorMaker {
 public:
  absl::Status Init(OpKernelContext* /*ctx*/) { return absl::OkStatus(); }

  AccumulatorResource* Make(const AccumulatorSpec& spec) const {
    return new AccumulatorResource(spec, SumMaker(spec),
                                   AccumulatorResource::ResultMemory::kKept);
  }

 private:
  static AccumulatorResource::SumMaker SumMaker(const AccumulatorSpec& spec) {
    return VisitAccumulatorType(
        spec.dtype, [&](auto type) -> AccumulatorResource::SumMaker {
          using T = decltype(type);
          if (!spec.is_sparse) {
            return [] { return std::make_unique<CpuDenseGradientSum<T>>(); };
          }
          return [memory = std::make_shared<SparseSumMemory>()] {
            return std::make_unique<SparseGradientSum<T>>(memory);
          };
        });
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Syncrep>DenseAccumulator").Device(tensorflow::DEVICE_CPU),
    AccumulatorOp</*kIsSparse=*/false, CpuAccumulatorMaker>);
REGISTER_KERNEL_BUILDER(
    Name("Syncrep>SparseAccumulator").Device(tensorflow::DEVICE_CPU),
    AccumulatorOp</*kIsSparse=*/true, CpuAccumulatorMaker>);
REGISTER_KERNEL_BUILDER(
    Name("Syncrep>AccumulatorSetGlobalStep").Device(tensorflow::DEVICE_CPU),
    AccumulatorSetGlobalStepOp);
REGISTER_KERNEL_BUILDER(
    Name("Syncrep>AccumulatorNumAccumulated").Device(tensorflow::DEVICE_CPU),
    AccumulatorNumAccumulatedOp);
REGISTER_KERNEL_BUILDER(
    Name("Syncrep>AccumulatorStats").Device(tensorflow::DEVICE_CPU),
    AccumulatorStatsOp);

}  // namespace
}  // namespace tf_syncrep
