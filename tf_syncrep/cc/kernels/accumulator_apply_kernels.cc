// Kernels that push gradients into accumulators in the host's memory.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_apply_op.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/scalar_output.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
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
    const PartialTensorShape& allowed = accumulator->spec().shape;
    OP_REQUIRES_OK(ctx, CheckIndicesAndValues(ctx));
    OP_REQUIRES_OK(ctx, CheckGradientShape(ctx, allowed));
    std::vector<int64_t> rows;
    OP_REQUIRES_OK(ctx, Rows(ctx, allowed, &rows));
    const Tensor& values = ctx->input(kValues);
    OP_REQUIRES_OK(ctx, CheckRowShape(values.shape(), allowed));

    std::vector<int64_t> row_dims = Dims(values.shape());
    row_dims.erase(row_dims.begin());
    const int64_t row_size = TensorShape(row_dims).num_elements();
    DeviceSharder sharder(ctx);
    std::vector<int64_t> held_dims;
    const PushResult result = accumulator->accumulator().Push(
        step, row_dims,
        [&](GradientSum& sum) {
          return static_cast<SparseGradientSum<LibT>&>(sum).Add(
              std::move(rows), row_size,
              reinterpret_cast<const LibT*>(values.flat<T>().data()), sharder);
        },
        sharder, &held_dims);
    OP_REQUIRES(ctx, result != PushResult::kShapeMismatch,
                RowShapeMismatch(held_dims, row_dims));
    OP_REQUIRES(ctx, result != PushResult::kOutOfMemory,
                OutOfMemoryForGradients("rows"));
    OP_REQUIRES_OK(ctx,
                   SetScalarOutput(ctx, 0, result == PushResult::kAccepted));
  }

 private:
  static constexpr int kIndices = 2;
  static constexpr int kValues = 3;
  static constexpr int kShape = 4;

  static absl::Status CheckIndicesAndValues(OpKernelContext* ctx) {
    const TensorShape& indices = ctx->input(kIndices).shape();
    const TensorShape& values = ctx->input(kValues).shape();
    if (!TensorShapeUtils::IsVector(indices)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Input indices should be vector but received shape: ",
                       indices.DebugString()));
    }
    if (values.dims() == 0) {
      return absl::InvalidArgumentError("Values cannot be 0-dimensional.");
    }
    if (values.dim_size(0) != indices.dim_size(0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Expected ", indices.dim_size(0),
                       " non-empty input values, got ", values.dim_size(0)));
    }
    return absl::OkStatus();
  }

  // The shape that comes with the gradient, if it does.
  absl::Status CheckGradientShape(OpKernelContext* ctx,
                                  const PartialTensorShape& allowed) const {
    if (!has_known_shape_) {
      return absl::OkStatus();
    }
    const Tensor& input = ctx->input(kShape);
    if (!TensorShapeUtils::IsVector(input.shape())) {
      return absl::InvalidArgumentError(
          absl::StrCat("gradient_shape must be a vector, but has shape ",
                       input.shape().DebugString()));
    }
    if (allowed.dims() > input.NumElements()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Shape mismatch: expected shape rank at least ",
                       allowed.dims(), ", got ", input.NumElements()));
    }
    const auto shape = input.vec<int64_t>();
    for (int i = 0; i < allowed.dims(); ++i) {
      if (allowed.dim_size(i) != -1 && allowed.dim_size(i) != shape(i)) {
        return absl::InvalidArgumentError(
            absl::StrCat("Shape mismatch: expected shape dim ", i, " to be ",
                         allowed.dim_size(i), ", got ", shape(i)));
      }
    }
    return absl::OkStatus();
  }

  // A checked copy of the indices, which others cannot change any more.
  absl::Status Rows(OpKernelContext* ctx, const PartialTensorShape& allowed,
                    std::vector<int64_t>* rows) const {
    int64_t limit = allowed.dims() > 0 ? allowed.dim_size(0) : -1;
    if (limit < 0 && has_known_shape_ && ctx->input(kShape).NumElements() > 0) {
      limit = ctx->input(kShape).vec<int64_t>()(0);
    }
    const auto indices = ctx->input(kIndices).vec<Index>();
    rows->assign(indices.data(), indices.data() + indices.size());
    for (size_t i = 0; i < rows->size(); ++i) {
      const int64_t row = (*rows)[i];
      if (row < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("Shape mismatch: index of slice ", i,
                         " must not be negative; index is ", row));
      }
      if (limit >= 0 && row >= limit) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Shape mismatch: index of slice ", i,
            " exceeded limits of shape; index is ", row, " exceeded ", limit));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status CheckRowShape(const TensorShape& values,
                                    const PartialTensorShape& allowed) {
    if (allowed.dims() > values.dims()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Shape mismatch: expected values rank at least ",
                       allowed.dims(), ", got ", values.dims()));
    }
    for (int i = 1; i < allowed.dims(); ++i) {
      if (allowed.dim_size(i) != -1 &&
          allowed.dim_size(i) != values.dim_size(i)) {
        return ValuesDimMismatch(i, allowed.dim_size(i), values.dim_size(i));
      }
    }
    return absl::OkStatus();
  }

  // Of a gradient and those that are held. The rank counts the indices' too.
  static absl::Status RowShapeMismatch(const std::vector<int64_t>& held,
                                       const std::vector<int64_t>& received) {
    if (held.size() != received.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Shape mismatch: expected values rank ", held.size() + 1,
                       ", got ", received.size() + 1));
    }
    size_t i = 0;
    while (i + 1 < held.size() && held[i] == received[i]) {
      ++i;
    }
    return ValuesDimMismatch(static_cast<int>(i) + 1, held[i], received[i]);
  }

  static absl::Status ValuesDimMismatch(int dim, int64_t expected,
                                        int64_t received) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape mismatch: expected values dim ", dim, " to be ",
                     expected, ", got ", received));
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
