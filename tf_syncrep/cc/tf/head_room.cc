#include "tf_syncrep/cc/tf/head_room.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_syncrep {
namespace {

using tensorflow::AllocatorAttributes;
using tensorflow::DataType;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::TensorShape;

constexpr int64_t kMaxHeadRows = int64_t{1} << 31;

// The shape of a matrix with a head, after a check that it is one.
absl::Status ShapeWithHead(DataType dtype, int64_t head_rows, int64_t num_rows,
                           int64_t width, TensorShape* shape) {
  if (head_rows < 0 || head_rows >= kMaxHeadRows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_rows must be in [0, ", kMaxHeadRows, "), but is ", head_rows));
  }
  const absl::Status status =
      TensorShape::BuildTensorShape({head_rows + num_rows, width}, shape);
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_rows, ", head_rows, ", must fit before ", num_rows, " rows of ",
        width, ", but there would be too many elements"));
  }
  // The product cannot overflow where there is a row at all.
  if (head_rows > 0 && head_rows * width * tensorflow::DataTypeSize(dtype) %
                               tensorflow::Allocator::kAllocatorAlignment !=
                           0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_rows must take a multiple of ",
        static_cast<int64_t>(tensorflow::Allocator::kAllocatorAlignment),
        " bytes, but is ", head_rows, " rows of ", width, " ",
        tensorflow::DataTypeString(dtype)));
  }
  return absl::OkStatus();
}

}  // namespace

Tensor RowsFrom(const Tensor& matrix, int64_t first_row) {
  const int64_t num_rows = matrix.dim_size(0) - first_row;
  // TensorFlow ends the process if a tensor without memory is sliced.
  if (matrix.NumElements() == 0) {
    return Tensor(matrix.dtype(), TensorShape({num_rows, matrix.dim_size(1)}));
  }
  return matrix.Slice(first_row, matrix.dim_size(0));
}

absl::Status AllocateWithHeadRoom(OpKernelContext* ctx, DataType dtype,
                                  int64_t head_rows, int64_t num_rows,
                                  int64_t width, Tensor* rows) {
  TensorShape shape;
  TF_RETURN_IF_ERROR(ShapeWithHead(dtype, head_rows, num_rows, width, &shape));
  Tensor whole;
  TF_RETURN_IF_ERROR(ctx->allocate_temp(dtype, shape, &whole));
  *rows = RowsFrom(whole, head_rows);
  return absl::OkStatus();
}

absl::Status ExtendIntoHeadRoom(OpKernelContext* ctx, int index,
                                int64_t head_rows, Tensor* result) {
  const DataType dtype = ctx->input(index).dtype();
  const TensorShape rows_shape = ctx->input(index).shape();
  TensorShape shape;
  TF_RETURN_IF_ERROR(ShapeWithHead(dtype, head_rows, rows_shape.dim_size(0),
                                   rows_shape.dim_size(1), &shape));
  // It is null if somebody else holds the memory.
  const std::unique_ptr<Tensor> ours = ctx->forward_input(
      index, OpKernelContext::Params::kNoReservation, dtype, rows_shape,
      ctx->input_memory_type(index), AllocatorAttributes());
  const Tensor& rows = ours == nullptr ? ctx->input(index) : *ours;
  const auto row_bytes = static_cast<size_t>(rows_shape.dim_size(1)) *
                         tensorflow::DataTypeSize(dtype);
  const size_t head_bytes = static_cast<size_t>(head_rows) * row_bytes;
  if (ours != nullptr) {
    // TensorFlow has no public function for the memory around a slice.
    TensorBuffer* const slice = tensorflow::DMAHelper::buffer(ours.get());
    TensorBuffer* const whole =
        slice == nullptr ? nullptr : slice->root_buffer();
    if (whole != nullptr &&
        static_cast<char*>(whole->data()) + head_bytes == slice->data() &&
        whole->size() >= head_bytes + slice->size()) {
      *result = Tensor(dtype, shape, whole);
      return absl::OkStatus();
    }
  }
  TF_RETURN_IF_ERROR(ctx->allocate_temp(dtype, shape, result));
  if (rows.NumElements() > 0) {
    std::memcpy(static_cast<char*>(result->data()) + head_bytes, rows.data(),
                rows.TotalBytes());
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep
