// The CPU kernel that takes a round's gradients and applies their mean by
// AdamAsync: checks, locks, takes, and calls cc/lib.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/kernels/adam_async_op.h"
#include "tf_syncrep/cc/kernels/adam_async_step.h"
#include "tf_syncrep/cc/kernels/update_checks.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/adam_async.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using Access = LockedVariables::Access;

template <typename T>
class AccumulatorTakeRoundApplyAdamAsyncDenseOp final
    : public AdamAsyncOpBase<T, OpKernel> {
 public:
  using Base = AdamAsyncOpBase<T, OpKernel>;
  using Base::Base;
  using typename Base::LibT;
  using typename Base::Slot;

  void Compute(OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    OP_REQUIRES_OK(ctx, LookupAccumulator(ctx, /*is_sparse=*/false,
                                          Base::kDtype, &accumulator));
    LockedVariables variables;
    OP_REQUIRES_OK(ctx,
                   this->LockAndCheck(ctx, Access::kExclusive, &variables));
    // The accumulator's lock is taken while the variables' locks are held. No
    // thread that holds the accumulator's lock asks for theirs.
    DenseBefore before;
    const auto prepare = [&](const std::vector<int64_t>& shape) {
      TF_RETURN_IF_ERROR(CheckSameShapeAsVar("grad", TensorShape(shape),
                                             variables.tensor(kVar).shape()));
      return PrepareDenseStep(ctx, variables, &before);
    };
    TakenGradients taken;
    OP_REQUIRES_OK(ctx, TakeRound(ctx, *accumulator, &taken, prepare));
    // From here on nothing can fail.
    const auto update = TakeStep<Slot>(ctx, this->Formula(), variables);
    DeviceSharder sharder(ctx);
    auto& sum = static_cast<CpuDenseGradientSum<LibT>&>(taken.Merged(sharder));
    const int64_t divisor = accumulator->spec().reduction == Reduction::kSum
                                ? 1
                                : taken.num_gradients;
    static_assert(kMaxGradientBlock <= CpuDenseGradientSum<LibT>::kMaxBlock);
    ApplyAdamAsyncInBlocks<LibT>(
        update, variables.tensor(kVar).NumElements(),
        [&](int64_t begin, int64_t size, LibT* scratch) {
          return sum.Block(divisor, begin, size, scratch);
        },
        DataBefore<LibT>(before), Base::VarData(variables),
        variables.data<Slot>(kM), variables.data<Slot>(kV), sharder);
    // All owners are tensors: see GradientInput().
    const OwnedBuffer memory = sum.Release();
    accumulator->Keep(*static_cast<const Tensor*>(memory.owner.get()));
  }
};

#define TF_SYNCREP_REGISTER(T)                                \
  REGISTER_KERNEL_BUILDER(                                    \
      Name("Syncrep>AccumulatorTakeRoundApplyAdamAsyncDense") \
          .Device(tensorflow::DEVICE_CPU)                     \
          .TypeConstraint<T>("T"),                            \
      AccumulatorTakeRoundApplyAdamAsyncDenseOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
