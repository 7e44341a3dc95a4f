// The ops that make accumulators, set their step and read their counts,
// wherever the gradients are.

#ifndef TF_SYNCREP_CC_KERNELS_ACCUMULATOR_OP_H_
#define TF_SYNCREP_CC_KERNELS_ACCUMULATOR_OP_H_

#include <cstdint>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/logging.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/kernels/counted_resource_op.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/tf/scalar_input.h"
#include "tf_syncrep/cc/tf/scalar_output.h"

namespace tf_syncrep {

// Calls `visit` with a T for a dtype that accumulators can have.
template <typename Visit>
auto VisitAccumulatorType(tensorflow::DataType dtype, const Visit& visit) {
  if (dtype == tensorflow::DT_HALF) {
    return visit(Half());
  }
  if (dtype == tensorflow::DT_BFLOAT16) {
    return visit(BFloat16());
  }
  if (dtype == tensorflow::DT_DOUBLE) {
    return visit(double());
  }
  return visit(float());
}

// A Maker makes accumulators in the memory of the op's device:
//   absl::Status Init(OpKernelContext* ctx)    called once, before all else
//   AccumulatorResource* Make(const AccumulatorSpec& spec) const
template <bool kIsSparse, typename Maker>
class AccumulatorOp final : public CountedResourceOp<AccumulatorResource> {
 public:
  explicit AccumulatorOp(tensorflow::OpKernelConstruction* ctx)
      : CountedResourceOp(ctx) {
    std::string reduction;
    std::string mode;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &spec_.dtype));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shape", &spec_.shape));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reduction_type", &reduction));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mode", &mode));
    spec_.is_sparse = kIsSparse;
    // The op's definition allows no other strings.
    spec_.reduction = reduction == "SUM"     ? Reduction::kSum
                      : reduction == "CMEAN" ? Reduction::kCountedMean
                                             : Reduction::kMean;
    spec_.mode =
        mode == "ROUND" ? AccumulatorMode::kRound : AccumulatorMode::kStep;
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    std::call_once(init_once_, [&] { init_status_ = maker_.Init(ctx); });
    OP_REQUIRES_OK(ctx, init_status_);
    CountedResourceOp::Compute(ctx);
  }

 private:
  absl::Status CreateResource(AccumulatorResource** resource) override {
    *resource = maker_.Make(spec_);
    return absl::OkStatus();
  }

  absl::Status VerifyResource(AccumulatorResource* resource) override {
    const std::string existing = resource->spec().DebugString();
    const std::string received = spec_.DebugString();
    if (existing == received) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("The accumulator ", shared_name(), " exists with ",
                     existing, ". Received: ", received));
  }

  AccumulatorSpec spec_;
  std::once_flag init_once_;  // guards the next two fields
  Maker maker_;
  absl::Status init_status_;
};

// These ops use only the accumulator's bookkeeping, which is on the host.

class AccumulatorSetGlobalStepOp final : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
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

class AccumulatorNumAccumulatedOp final : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    OP_REQUIRES_OK(ctx, LookupAccumulator(ctx, &accumulator));
    // Every held gradient takes memory, so there are too few to overflow this.
    const auto num_held =
        static_cast<int32_t>(accumulator->accumulator().num_held());
    OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, 0, num_held));
  }
};

class AccumulatorStatsOp final : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    OP_REQUIRES_OK(ctx, LookupAccumulator(ctx, &accumulator));
    const AccumulatorStats stats = accumulator->accumulator().stats();
    // The values are in the order of the op's outputs.
    const int64_t values[] = {stats.step,     stats.held,  stats.pushed,
                              stats.accepted, stats.stale, stats.voided,
                              stats.taken,    stats.takes, stats.bytes};
    int index = 0;
    for (const int64_t value : values) {
      OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, index++, value));
    }
  }
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_ACCUMULATOR_OP_H_
