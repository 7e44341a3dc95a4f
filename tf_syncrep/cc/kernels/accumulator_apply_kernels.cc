// Kernels that push gradients into accumulators in the host's memory.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_apply_op.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalar_output.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using PushResult = Accumulator::PushResult;

template <typename T, typename Index>
class AccumulatorApplySparseOp final : public OpKernel {
 public:
  using LibT = LibType<T>;

  explicit AccumulatorApplySparseOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_known_shape", &has_known_shape_));
  }

  void Compute(OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    int64_t step = 0;
    OP_REQUIRES_OK(ctx,
                   LookupAccumulator(ctx, /*is_sparse=*/true,
                                     DataTypeToEnum<T>::value, &accumulator));
    OP_REQUIRES_OK(ctx, LocalStepInput(ctx, &step));
    int64_t limit = -1;
    OP_REQUIRES_OK(ctx, CheckSparseGradient(ctx, accumulator->spec().shape,
                                            has_known_shape_, &limit));
    const TensorShape shape = ctx->input(kGradientValues).shape();
    if (accumulator->accumulator().DropIfStale(step)) {
      OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, 0, false));
      return;
    }
    Array<int64_t> rows;
    OP_REQUIRES_OK(ctx, Rows(ctx, limit, &rows));

    const OwnedBuffer values = GradientInput(ctx, kGradientValues);
    const std::vector<int64_t> row_dims = RowDims(shape);
    const int64_t row_size = RowSize(shape);
    DeviceSharder sharder(ctx);
    std::vector<int64_t> held_dims;
    const PushResult result = accumulator->accumulator().Push(
        step, row_dims,
        [&](GradientSum& sum, bool /*others_wait*/) {
          return static_cast<SparseGradientSum<LibT>&>(sum).Add(
              std::move(rows), row_size, values, sharder);
        },
        sharder, &held_dims);
    OP_REQUIRES(ctx, result != PushResult::kShapeMismatch,
                RowShapeMismatch(held_dims, row_dims));
    OP_REQUIRES(ctx, result != PushResult::kOutOfMemory,
                OutOfMemory("the rows of a gradient",
                            ctx->input(kGradientValues).TotalBytes() +
                                shape.dim_size(0) * sizeof(int64_t)));
    OP_REQUIRES_OK(ctx,
                   SetScalarOutput(ctx, 0, result == PushResult::kAccepted));
  }

 private:
  // Returns a checked copy of the indices, which others cannot change.
  static absl::Status Rows(OpKernelContext* ctx, int64_t limit,
                           Array<int64_t>* rows) {
    const Tensor& input = ctx->input(kGradientIndices);
    const auto* const indices = Data<const Index>(input);
    if (!rows->Allocate(input.NumElements())) {
      return OutOfMemory("the indices of a gradient",
                         input.NumElements() * sizeof(int64_t));
    }
    for (int64_t i = 0; i < rows->size(); ++i) {
      const int64_t row = ReadOnce(&indices[i]);
      if (row < 0 || (limit >= 0 && row >= limit)) {
        return BadGradientIndex(i, row, limit);
      }
      (*rows)[i] = row;
    }
    return absl::OkStatus();
  }

  bool has_known_shape_;
};

#define TF_SYNCREP_REGISTER(T)                                      \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorApplyDense")     \
                              .Device(tensorflow::DEVICE_CPU)       \
                              .TypeConstraint<T>("dtype"),          \
                          AccumulatorApplyDenseOp<T>);              \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorApplySparse")    \
                              .Device(tensorflow::DEVICE_CPU)       \
                              .TypeConstraint<T>("dtype")           \
                              .TypeConstraint<int32_t>("Tindices"), \
                          AccumulatorApplySparseOp<T, int32_t>);    \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>AccumulatorApplySparse")    \
                              .Device(tensorflow::DEVICE_CPU)       \
                              .TypeConstraint<T>("dtype")           \
                              .TypeConstraint<int64_t>("Tindices"), \
                          AccumulatorApplySparseOp<T, int64_t>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
