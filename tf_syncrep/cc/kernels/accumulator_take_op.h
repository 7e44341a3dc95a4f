// The ops that take the reduced gradient out of an accumulator: the parts that
// do not depend on where the gradients are.

#ifndef TF_SYNCREP_CC_KERNELS_ACCUMULATOR_TAKE_OP_H_
#define TF_SYNCREP_CC_KERNELS_ACCUMULATOR_TAKE_OP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/step_cancellation.h"

namespace tf_syncrep {

// Returns the ResourceExhausted error for a result of `num_rows` rows of this
// shape, with elements of `element_bytes` bytes.
absl::Status OutOfMemoryForResult(int64_t num_rows,
                                  const std::vector<int64_t>& row_shape,
                                  size_t element_bytes);

// Returns InvalidArgument unless the accumulator has this mode.
absl::Status CheckMode(const AccumulatorResource& accumulator,
                       AccumulatorMode mode);

// Reads the op's input "num_required".
absl::Status NumRequiredInput(tensorflow::OpKernelContext* ctx,
                              int64_t* num_required);

// Takes the gradients of the round that the op's inputs name. `prepare` gets
// the gradients' shape, then checks and allocates whatever else is needed; if
// it fails, nothing is taken. It must not wait, since pushes wait for it.
absl::Status TakeRound(
    tensorflow::OpKernelContext* ctx, AccumulatorResource& accumulator,
    TakenGradients* taken,
    const std::function<absl::Status(const std::vector<int64_t>& shape)>&
        prepare = nullptr);

// Sets the output "shape" of a sparse gradient. The number of the variable's
// rows is -1 if the accumulator does not know it.
absl::Status SetShapeOutput(tensorflow::OpKernelContext* ctx,
                            const AccumulatorResource& accumulator,
                            const std::vector<int64_t>& row_dims);

// Called once, with OK or with the error for which the outputs were not set.
using OutputsDone = std::function<void(const absl::Status&)>;

// An Output<T> says what kind of gradients it is for, and puts the taken
// gradients into the op's outputs. It calls `done` at the end, and until then
// keeps alive what it needs.
template <typename T>
struct DenseOutput {
  static constexpr bool kIsSparse = false;

  static void Set(tensorflow::OpKernelContext* ctx,
                  const std::shared_ptr<AccumulatorResource>& accumulator,
                  TakenGradients taken, const OutputsDone& done) {
    const absl::Status status = Set(ctx, *accumulator, taken);
    // This frees the sums' memory for the gradients that follow.
    taken.sums.clear();
    done(status);
  }

 private:
  static absl::Status Set(tensorflow::OpKernelContext* ctx,
                          AccumulatorResource& accumulator,
                          TakenGradients& taken) {
    DeviceSharder sharder(ctx);
    auto& sum =
        static_cast<DenseGradientSum<LibType<T>>&>(taken.Merged(sharder));
    const int64_t divisor = accumulator.spec().reduction == Reduction::kSum
                                ? 1
                                : taken.num_gradients;
    const OwnedBuffer result = sum.Finish(
        divisor,
        [&](int64_t) -> OwnedBuffer {
          const auto owner = std::make_shared<tensorflow::Tensor>();
          absl::Status status = accumulator.Allocate(
              ctx, tensorflow::DataTypeToEnum<T>::value,
              tensorflow::TensorShape(taken.shape), owner.get());
          if (!status.ok()) {
            return {};
          }
          return {owner->data(), owner};
        },
        sharder);
    TF_RETURN_IF_ERROR(SumStatus(sum));
    if (result.owner == nullptr) {
      return OutOfMemoryForResult(1, taken.shape, sizeof(T));
    }
    // All owners are tensors: see also AccumulatorApplyDenseOp.
    const auto& output =
        *static_cast<const tensorflow::Tensor*>(result.owner.get());
    ctx->set_output(0, output);
    accumulator.Keep(output);
    return absl::OkStatus();
  }
};

// A reference to an accumulator that may be shared.
inline std::shared_ptr<AccumulatorResource> ShareAccumulator(
    AccumulatorPtr accumulator) {
  return std::shared_ptr<AccumulatorResource>(
      accumulator.release(),
      [](AccumulatorResource* resource) { resource->Unref(); });
}

// Waits until there are enough gradients.
template <typename T, template <typename> class Output>
class AccumulatorTakeOp final : public tensorflow::AsyncOpKernel {
 public:
  using tensorflow::AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(tensorflow::OpKernelContext* ctx,
                    DoneCallback done) override {
    AccumulatorPtr lookup;
    int64_t num_required = 0;
    OP_REQUIRES_OK_ASYNC(
        ctx,
        LookupAccumulator(ctx, Output<T>::kIsSparse,
                          tensorflow::DataTypeToEnum<T>::value, &lookup),
        done);
    OP_REQUIRES_OK_ASYNC(ctx, CheckMode(*lookup, AccumulatorMode::kStep), done);
    OP_REQUIRES_OK_ASYNC(ctx, NumRequiredInput(ctx, &num_required), done);
    // The wait keeps the accumulator alive, and the accumulator keeps the wait,
    // until the wait ends: with enough gradients, or by cancellation.
    const std::shared_ptr<AccumulatorResource> accumulator =
        ShareAccumulator(std::move(lookup));
    const auto take_slot = std::make_shared<std::weak_ptr<PendingTake>>();
    const auto cancellation = std::make_shared<StepCancellation>(
        ctx, [accumulator, take_slot](int64_t) {
          if (const auto take = take_slot->lock()) {
            accumulator->accumulator().Cancel(take);
          }
        });
    const auto take = std::make_shared<PendingTake>(
        num_required,
        [ctx, done, accumulator, cancellation](TakenGradients taken) {
          if (!cancellation->Finish() || taken.sums.empty()) {
            ctx->SetStatus(
                absl::CancelledError("TakeGrad operation was cancelled"));
            done();
            return;
          }
          // This thread may be one that has just pushed a gradient. It must not
          // have to reduce all of them.
          RunDone(
              ctx,
              [ctx, done, accumulator,
               shared = std::make_shared<TakenGradients>(std::move(taken))] {
                Output<T>::Set(ctx, accumulator, std::move(*shared),
                               [ctx, done](const absl::Status& status) {
                                 OP_REQUIRES_OK_ASYNC(ctx, status, done);
                                 done();
                               });
              });
        });
    *take_slot = take;
    OP_REQUIRES_ASYNC(ctx, cancellation->Register(),
                      absl::CancelledError("TakeGrad operation was cancelled"),
                      done);
    // From here on a cancellation ends the take, even if it has not begun.
    cancellation->SetWait(1);
    accumulator->accumulator().Take(take);
  }
};

// Takes the gradients of one round, all of which have arrived. For outputs that
// are set before Set() returns.
template <typename T, template <typename> class Output>
class AccumulatorTakeRoundOp final : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    AccumulatorPtr lookup;
    OP_REQUIRES_OK(
        ctx, LookupAccumulator(ctx, Output<T>::kIsSparse,
                               tensorflow::DataTypeToEnum<T>::value, &lookup));
    TakenGradients taken;
    OP_REQUIRES_OK(ctx, TakeRound(ctx, *lookup, &taken));
    Output<T>::Set(
        ctx, ShareAccumulator(std::move(lookup)), std::move(taken),
        [ctx](const absl::Status& status) { OP_REQUIRES_OK(ctx, status); });
  }
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_ACCUMULATOR_TAKE_OP_H_
