// Kernels that push gradients into accumulators.
//
// Some messages repeat TensorFlow's on purpose: programs written for its
// accumulators may look for them.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/accumulator_resource.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::AllocatorAttributes;
using tensorflow::DataTypeToEnum;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
using PushResult = Accumulator::PushResult;

absl::Status LocalStepInput(OpKernelContext* ctx, int64_t* step) {
  return ScalarInput(ctx, "local_step", step, ScalarError::kTensorFlows);
}

std::vector<int64_t> Dims(const TensorShape& shape) {
  const auto dims = shape.dim_sizes();
  return {dims.begin(), dims.end()};
}

// The memory of an input. It has an owner, so that the accumulator may keep it
// and write to it, if nobody else refers to it; these are also the inputs that
// TensorFlow would let an op reuse for its output. Other inputs may belong to a
// variable, which others write to, or to an array of the user's, and must not
// be used after this op.
OwnedBuffer GradientInput(OpKernelContext* ctx, int index) {
  const Tensor& input = ctx->input(index);
  std::unique_ptr<Tensor> ours = ctx->forward_input(
      index, OpKernelContext::Params::kNoReservation, input.dtype(),
      input.shape(), ctx->input_memory_type(index), AllocatorAttributes());
  if (ours == nullptr || !ours->IsAligned()) {
    return {input.data(), nullptr};
  }
  const std::shared_ptr<Tensor> owner = std::move(ours);
  return {owner->data(), owner};
}

// The error of a shape other than `expected`, which is written as TensorFlow
// writes shapes.
absl::Status DenseShapeMismatch(const std::string& expected,
                                const TensorShape& received) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Shape mismatch: expected ", expected, ", got ", received.DebugString()));
}

// Also for gradients in a GPU's memory, whose sums are there too.
template <typename T>
class AccumulatorApplyDenseOp final : public OpKernel {
 public:
  using LibT = LibType<T>;
  using Sum = SlotType<LibT>;

  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    AccumulatorPtr accumulator;
    int64_t step = 0;
    OP_REQUIRES_OK(ctx,
                   LookupAccumulator(ctx, /*is_sparse=*/false,
                                     DataTypeToEnum<T>::value, &accumulator));
    OP_REQUIRES_OK(ctx, LocalStepInput(ctx, &step));
    const TensorShape shape = ctx->input(kGradient).shape();
    const PartialTensorShape& allowed = accumulator->spec().shape;
    OP_REQUIRES(ctx, allowed.IsCompatibleWith(shape),
                DenseShapeMismatch(allowed.DebugString(), shape));

    const OwnedBuffer gradient = GradientInput(ctx, kGradient);
    const AllocateBuffer allocate_sum = [&](int64_t) {
      return accumulator->Allocate(ctx, DataTypeToEnum<Sum>::value, shape);
    };
    DeviceSharder sharder(ctx);
    std::vector<int64_t> held_shape;
    absl::Status status;
    const PushResult result = accumulator->accumulator().Push(
        step, Dims(shape),
        [&](GradientSum& sum, bool others_wait) {
          const bool is_added = static_cast<DenseGradientSum<LibT>&>(sum).Add(
              gradient, shape.num_elements(), allocate_sum, others_wait,
              sharder);
          status = SumStatus(sum);
          return is_added;
        },
        &held_shape);
    OP_REQUIRES(
        ctx, result != PushResult::kShapeMismatch,
        DenseShapeMismatch(TensorShape(held_shape).DebugString(), shape));
    OP_REQUIRES(ctx, result != PushResult::kOutOfMemory,
                OutOfMemory("the sum of gradients",
                            shape.num_elements() * sizeof(Sum)));
    OP_REQUIRES_OK(ctx, status);
    OP_REQUIRES_OK(ctx,
                   SetScalarOutput(ctx, 0, result == PushResult::kAccepted));
  }

 private:
  static constexpr int kGradient = 2;
};

// Inputs of AccumulatorApplySparse.
constexpr int kGradientIndices = 2;
constexpr int kGradientValues = 3;
constexpr int kGradientShape = 4;

absl::Status CheckIndicesAndValues(OpKernelContext* ctx) {
  const TensorShape& indices = ctx->input(kGradientIndices).shape();
  const TensorShape& values = ctx->input(kGradientValues).shape();
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

absl::Status CheckGradientShape(OpKernelContext* ctx,
                                const PartialTensorShape& allowed) {
  const Tensor& input = ctx->input(kGradientShape);
  TF_RETURN_IF_ERROR(CheckVector(input, "gradient_shape"));
  if (allowed.dims() > input.NumElements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape mismatch: expected shape rank at least ",
                     allowed.dims(), ", got ", input.NumElements()));
  }
  const auto* const shape = Data<const int64_t>(input);
  for (int i = 0; i < allowed.dims(); ++i) {
    if (allowed.dim_size(i) != -1 && allowed.dim_size(i) != shape[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("Shape mismatch: expected shape dim ", i, " to be ",
                       allowed.dim_size(i), ", got ", shape[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status ValuesDimMismatch(int dim, int64_t expected, int64_t received) {
  return absl::InvalidArgumentError(
      absl::StrCat("Shape mismatch: expected values dim ", dim, " to be ",
                   expected, ", got ", received));
}

absl::Status CheckRowShape(const TensorShape& values,
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

// Checks the shapes of indices, values and rows, and the input "gradient_shape"
// if the shape is known. `limit` is set to the number that indices must be
// below.
absl::Status CheckSparseGradient(OpKernelContext* ctx,
                                 const PartialTensorShape& allowed,
                                 bool has_known_shape, int64_t* limit) {
  TF_RETURN_IF_ERROR(CheckIndicesAndValues(ctx));
  *limit = allowed.dims() > 0 ? allowed.dim_size(0) : -1;
  if (has_known_shape) {
    TF_RETURN_IF_ERROR(CheckGradientShape(ctx, allowed));
    if (*limit < 0 && ctx->input(kGradientShape).NumElements() > 0) {
      *limit = *Data<const int64_t>(ctx->input(kGradientShape));
    }
  }
  constexpr int64_t kMost = kMaxSparseRow + 1;
  *limit = *limit < 0 ? kMost : std::min(*limit, kMost);
  return CheckRowShape(ctx->input(kGradientValues).shape(), allowed);
}

// Returns the InvalidArgument error for the index at `position`, which is
// negative or not below `limit`.
absl::Status BadGradientIndex(int64_t position, int64_t index, int64_t limit) {
  if (index < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape mismatch: index of slice ", position,
                     " must not be negative; index is ", index));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "Shape mismatch: index of slice ", position,
      " exceeded limits of shape; index is ", index, " exceeded ", limit));
}

// Sets `rows` to a checked copy of the indices, which others cannot change.
template <typename Index>
absl::Status CopyRows(OpKernelContext* ctx, int64_t limit,
                      Array<int64_t>* rows) {
  const Tensor& input = ctx->input(kGradientIndices);
  const auto* const indices = Data<const Index>(input);
  if (!rows->Allocate(input.NumElements())) {
    return OutOfMemory("the indices of a gradient",
                       input.NumElements() * sizeof(int64_t));
  }
  for (int64_t i = 0; i < rows->size(); ++i) {
    const int64_t row = ReadOnce(&indices[i]);
    if (row < 0 || row >= limit) {
      return BadGradientIndex(i, row, limit);
    }
    (*rows)[i] = row;
  }
  return absl::OkStatus();
}

// The error for a gradient whose rows have another shape than the held ones.
// The ranks in the message count the dimension of the indices too.
absl::Status RowShapeMismatch(const std::vector<int64_t>& held,
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

template <typename T>
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
    OP_REQUIRES_OK(ctx,
                   ctx->input(kGradientIndices).dtype() == tensorflow::DT_INT64
                       ? CopyRows<int64_t>(ctx, limit, &rows)
                       : CopyRows<int32_t>(ctx, limit, &rows));

    const OwnedBuffer values = GradientInput(ctx, kGradientValues);
    // All dimensions of the values but the first.
    std::vector<int64_t> row_dims = Dims(shape);
    row_dims.erase(row_dims.begin());
    // If there are no rows, the number of their elements may be too large for
    // an integer.
    const int64_t num_rows = shape.dim_size(0);
    const int64_t row_size =
        num_rows == 0 ? 0 : shape.num_elements() / num_rows;
    DeviceSharder sharder(ctx);
    std::vector<int64_t> held_dims;
    const PushResult result = accumulator->accumulator().Push(
        step, row_dims,
        [&](GradientSum& sum, bool /*others_wait*/) {
          return static_cast<SparseGradientSum<LibT>&>(sum).Add(
              std::move(rows), row_size, values, sharder);
        },
        &held_dims);
    OP_REQUIRES(ctx, result != PushResult::kShapeMismatch,
                RowShapeMismatch(held_dims, row_dims));
    OP_REQUIRES(ctx, result != PushResult::kOutOfMemory,
                OutOfMemory("the rows of a gradient",
                            ctx->input(kGradientValues).TotalBytes() +
                                num_rows * sizeof(int64_t)));
    OP_REQUIRES_OK(ctx,
                   SetScalarOutput(ctx, 0, result == PushResult::kAccepted));
  }

 private:
  bool has_known_shape_;
};

#define TF_SYNCREP_REGISTER(T)                                           \
  TF_SYNCREP_REGISTER_CPU_AND_GPU(Name("Syncrep>AccumulatorApplyDense")  \
                                      .TypeConstraint<T>("dtype")        \
                                      .HostMemory("handle")              \
                                      .HostMemory("local_step")          \
                                      .HostMemory("accepted"),           \
                                  AccumulatorApplyDenseOp<T>);           \
  TF_SYNCREP_REGISTER_CPU_AND_GPU(Name("Syncrep>AccumulatorApplySparse") \
                                      .TypeConstraint<T>("dtype")        \
                                      .HostMemory("handle")              \
                                      .HostMemory("local_step")          \
                                      .HostMemory("gradient_indices")    \
                                      .HostMemory("gradient_values")     \
                                      .HostMemory("gradient_shape")      \
                                      .HostMemory("accepted"),           \
                                  AccumulatorApplySparseOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
