// Kernels that take the reduced gradient out of an accumulator in the host's
// memory.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/kernels/accumulator_take_op.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/huge_pages.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/reusable_tensor.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Outputs of the sparse ops: indices, values, shape.
template <typename T>
struct SparseOutput {
  static constexpr bool kIsSparse = true;

  static void Set(OpKernelContext* ctx,
                  const std::shared_ptr<AccumulatorResource>& accumulator,
                  TakenGradients taken, const OutputsDone& done) {
    const absl::Status status = Set(ctx, *accumulator, taken);
    // Its memory is then there for the gradients that follow.
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
    absl::Status status;
    const bool is_done = sum.Finish(
        accumulator.spec().reduction, taken.num_gradients,
        [&](int64_t num_rows, SparseResult<LibT>* result) {
          status = Allocate(ctx, accumulator, num_rows, taken.shape, result);
          return status.ok();
        },
        sharder);
    TF_RETURN_IF_ERROR(status);
    if (!is_done) {
      return OutOfMemoryForResult();
    }
    return SetShapeOutput(ctx, accumulator, taken.shape);
  }

  static absl::Status Allocate(OpKernelContext* ctx,
                               AccumulatorResource& accumulator,
                               int64_t num_rows,
                               const std::vector<int64_t>& row_dims,
                               SparseResult<LibType<T>>* result) {
    Tensor* rows;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({num_rows}), &rows));
    AdviseHugePages(rows->data(), rows->TotalBytes());
    TensorShape shape({num_rows});
    for (const int64_t dim : row_dims) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(dim));
    }
    Tensor values;
    TF_RETURN_IF_ERROR(
        accumulator.Allocate(ctx, DataTypeToEnum<T>::value, shape,
                             ReusableTensor::Rows::kAtLeast, &values));
    ctx->set_output(
        1, values.dim_size(0) == num_rows ? values : values.Slice(0, num_rows));
    accumulator.Keep(values);
    result->rows = rows->flat<int64_t>().data();
    result->values =
        reinterpret_cast<LibType<T>*>(values.template flat<T>().data());
    return absl::OkStatus();
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
