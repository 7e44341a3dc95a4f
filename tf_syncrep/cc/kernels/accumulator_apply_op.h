// The ops that push gradients into accumulators: the parts that do not depend
// on where the gradients are.
//
// Some messages repeat TensorFlow's on purpose: programs written for its
// accumulators may look for them.

#ifndef TF_SYNCREP_CC_KERNELS_ACCUMULATOR_APPLY_OP_H_
#define TF_SYNCREP_CC_KERNELS_ACCUMULATOR_APPLY_OP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalar_output.h"

namespace tf_syncrep {

// Reads the op's input "local_step".
absl::Status LocalStepInput(tensorflow::OpKernelContext* ctx, int64_t* step);

std::vector<int64_t> Dims(const tensorflow::TensorShape& shape);

// The memory of an input. It has an owner, so that the accumulator may keep it
// and write to it, if nobody else refers to it; these are also the inputs that
// TensorFlow would let an op reuse for its output. Other inputs may belong to a
// variable, which others write to, or to an array of the user's, and must not
// be used after this op.
OwnedBuffer GradientInput(tensorflow::OpKernelContext* ctx, int index);

// The error of a shape other than `expected`, which is written as TensorFlow
// writes shapes.
absl::Status DenseShapeMismatch(const std::string& expected,
                                const tensorflow::TensorShape& received);

template <typename T>
class AccumulatorApplyDenseOp final : public tensorflow::OpKernel {
 public:
  using LibT = LibType<T>;
  using Sum = SlotType<LibT>;

  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    int64_t step = 0;
    OP_REQUIRES_OK(ctx, LookupAccumulator(ctx, /*is_sparse=*/false,
                                          tensorflow::DataTypeToEnum<T>::value,
                                          &accumulator));
    OP_REQUIRES_OK(ctx, LocalStepInput(ctx, &step));
    const tensorflow::TensorShape shape = ctx->input(kGradient).shape();
    const tensorflow::PartialTensorShape& allowed = accumulator->spec().shape;
    OP_REQUIRES(ctx, allowed.IsCompatibleWith(shape),
                DenseShapeMismatch(allowed.DebugString(), shape));

    const OwnedBuffer gradient = GradientInput(ctx, kGradient);
    const AllocateBuffer allocate_sum = [&](int64_t) {
      return AllocateSum(ctx, *accumulator, shape);
    };
    DeviceSharder sharder(ctx);
    std::vector<int64_t> held_shape;
    absl::Status status;
    const Accumulator::PushResult result = accumulator->accumulator().Push(
        step, Dims(shape),
        [&](GradientSum& sum, bool others_wait) {
          const bool is_added = static_cast<DenseGradientSum<LibT>&>(sum).Add(
              gradient, shape.num_elements(), allocate_sum, others_wait,
              sharder);
          status = SumStatus(sum);
          return is_added;
        },
        sharder, &held_shape);
    OP_REQUIRES(ctx, result != Accumulator::PushResult::kShapeMismatch,
                DenseShapeMismatch(
                    tensorflow::TensorShape(held_shape).DebugString(), shape));
    OP_REQUIRES(ctx, result != Accumulator::PushResult::kOutOfMemory,
                OutOfMemory("the sum of gradients",
                            shape.num_elements() * sizeof(Sum)));
    OP_REQUIRES_OK(ctx, status);
    OP_REQUIRES_OK(
        ctx,
        SetScalarOutput(ctx, 0, result == Accumulator::PushResult::kAccepted));
  }

 private:
  static constexpr int kGradient = 2;

  static OwnedBuffer AllocateSum(tensorflow::OpKernelContext* ctx,
                                 AccumulatorResource& accumulator,
                                 const tensorflow::TensorShape& shape) {
    const auto owner = std::make_shared<tensorflow::Tensor>();
    absl::Status status = accumulator.Allocate(
        ctx, tensorflow::DataTypeToEnum<Sum>::value, shape, owner.get());
    if (!status.ok()) {
      return {};
    }
    return {owner->data(), owner};
  }
};

// Inputs of AccumulatorApplySparse.
inline constexpr int kGradientIndices = 2;
inline constexpr int kGradientValues = 3;
inline constexpr int kGradientShape = 4;

// Checks the shapes of indices, values and rows, and the input "gradient_shape"
// if the shape is known. `limit` is set to the number that indices must be
// below, or to -1.
absl::Status CheckSparseGradient(tensorflow::OpKernelContext* ctx,
                                 const tensorflow::PartialTensorShape& allowed,
                                 bool has_known_shape, int64_t* limit);

// Returns the InvalidArgument error for the index at `position`, which is
// negative or not below `limit`.
absl::Status BadGradientIndex(int64_t position, int64_t index, int64_t limit);

// The dimensions of a row: all dimensions of `values` but the first.
std::vector<int64_t> RowDims(const tensorflow::TensorShape& values);

// How many elements a row has. It is 0 if there are no rows: then the number of
// elements may be too large for an integer.
int64_t RowSize(const tensorflow::TensorShape& values);

// The error for a gradient whose rows have another shape than the held ones.
// The ranks in the message count the dimension of the indices too.
absl::Status RowShapeMismatch(const std::vector<int64_t>& held,
                              const std::vector<int64_t>& received);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_ACCUMULATOR_APPLY_OP_H_
