// Kernels that take the reduced gradient out of an accumulator in the host's
// memory.

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/kernels/accumulator_take_op.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/tf/buffer_tensor.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernelContext;
using tensorflow::TensorShape;

// Sets the outputs of the sparse ops: indices, values and shape.
template <typename T>
struct SparseOutput {
  static constexpr bool kIsSparse = true;

  static void Set(OpKernelContext* ctx,
                  const std::shared_ptr<AccumulatorResource>& accumulator,
                  TakenGradients taken, const OutputsDone& done) {
    const absl::Status status = Set(ctx, *accumulator, taken);
    // This frees the sums' memory for the gradients that follow.
    taken.sums.clear();
    done(status);
  }

 private:
  static absl::Status Set(OpKernelContext* ctx,
                          AccumulatorResource& accumulator,
                          TakenGradients& taken) {
    using LibT = LibType<T>;
    DeviceSharder sharder(ctx);
    auto& sum = static_cast<SparseGradientSum<LibT>&>(taken.Merged(sharder));
    TF_RETURN_IF_ERROR(SumStatus(sum));
    SparseResult result;
    const int64_t most_rows = sum.num_held_rows();
    if (!sum.Finish(accumulator.spec().reduction, taken.num_gradients, sharder,
                    &result)) {
      return OutOfMemoryForResult(most_rows, taken.shape, sizeof(T));
    }
    TensorShape shape({result.num_rows});
    for (const int64_t dim : taken.shape) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(dim));
    }
    ctx->set_output(
        0, BufferTensor(tensorflow::DT_INT64, TensorShape({result.num_rows}),
                        std::move(result.rows)));
    ctx->set_output(1, BufferTensor(DataTypeToEnum<T>::value, shape,
                                    std::move(result.values)));
    return SetShapeOutput(ctx, accumulator, taken.shape);
  }
};

#define TF_SYNCREP_REGISTER(T)                                       \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeDense")       \
                              .Device(tensorflow::DEVICE_CPU)        \
                              .TypeConstraint<T>("dtype"),           \
                          AccumulatorTakeOp<T, DenseOutput>);        \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeSparse")      \
                              .Device(tensorflow::DEVICE_CPU)        \
                              .TypeConstraint<T>("dtype"),           \
                          AccumulatorTakeOp<T, SparseOutput>);       \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeRoundDense")  \
                              .Device(tensorflow::DEVICE_CPU)        \
                              .TypeConstraint<T>("dtype"),           \
                          AccumulatorTakeRoundOp<T, DenseOutput>);   \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorTakeRoundSparse") \
                              .Device(tensorflow::DEVICE_CPU)        \
                              .TypeConstraint<T>("dtype"),           \
                          AccumulatorTakeRoundOp<T, SparseOutput>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
