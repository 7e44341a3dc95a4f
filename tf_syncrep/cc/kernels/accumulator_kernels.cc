// Kernels that make accumulators, set their step and tell their counts.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/logging.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/tf/scalar_input.h"
#include "tf_syncrep/cc/tf/scalar_output.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::ResourceOpKernel;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <bool kIsSparse>
class AccumulatorOp final : public ResourceOpKernel<AccumulatorResource> {
 public:
  explicit AccumulatorOp(OpKernelConstruction* ctx) : ResourceOpKernel(ctx) {
    std::string reduction;
    std::string mode;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &spec_.dtype));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shape", &spec_.shape));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reduction_type", &reduction));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mode", &mode));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("anonymous", &is_anonymous_));
    spec_.is_sparse = kIsSparse;
    // The op definition allows no other strings.
    spec_.reduction = reduction == "SUM"     ? Reduction::kSum
                      : reduction == "CMEAN" ? Reduction::kCountedMean
                                             : Reduction::kMean;
    spec_.mode =
        mode == "ROUND" ? AccumulatorMode::kRound : AccumulatorMode::kStep;
  }

  void Compute(OpKernelContext* ctx) override {
    if (!is_anonymous_) {
      ResourceOpKernel::Compute(ctx);
      return;
    }
    Tensor* handle;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &handle));
    // The handle takes over the only reference.
    handle->scalar<ResourceHandle>()() = ResourceHandle::MakeRefCountingHandle(
        new AccumulatorResource(spec_), ctx->device()->name());
  }

 private:
  absl::Status CreateResource(AccumulatorResource** resource) override {
    *resource = new AccumulatorResource(spec_);
    return absl::OkStatus();
  }

  absl::Status VerifyResource(AccumulatorResource* resource) override {
    const std::string existing = resource->spec().DebugString();
    const std::string received = spec_.DebugString();
    if (existing == received) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("The accumulator ", cinfo_.name(), " exists with ",
                     existing, ". Received: ", received));
  }

  AccumulatorSpec spec_;
  bool is_anonymous_;
};

class AccumulatorSetGlobalStepOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    int64_t step = 0;
    OP_REQUIRES_OK(ctx, LookupAccumulator(ctx, &accumulator));
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "new_global_step", &step));
    const int64_t previous = accumulator->accumulator().SetStep(step);
    if (step < previous && accumulator->spec().mode == AccumulatorMode::kStep) {
      LOG(WARNING) << "The global step of an accumulator goes back from "
                   << previous << " to " << step;
    }
  }
};

class AccumulatorNumAccumulatedOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    OP_REQUIRES_OK(ctx, LookupAccumulator(ctx, &accumulator));
    // Each of so many gradients takes memory, so that this holds them all.
    const auto num_held =
        static_cast<int32_t>(accumulator->accumulator().num_held());
    OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, 0, num_held));
  }
};

class AccumulatorStatsOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    OP_REQUIRES_OK(ctx, LookupAccumulator(ctx, &accumulator));
    const AccumulatorStats stats = accumulator->accumulator().stats();
    // In the order of the op's outputs.
    const int64_t values[] = {stats.step,     stats.held,  stats.pushed,
                              stats.accepted, stats.stale, stats.voided,
                              stats.taken,    stats.takes};
    int index = 0;
    for (const int64_t value : values) {
      OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, index++, value));
    }
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Syncrep>DenseAccumulator").Device(tensorflow::DEVICE_CPU),
    AccumulatorOp</*kIsSparse=*/false>);
REGISTER_KERNEL_BUILDER(
    Name("Syncrep>SparseAccumulator").Device(tensorflow::DEVICE_CPU),
    AccumulatorOp</*kIsSparse=*/true>);
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
