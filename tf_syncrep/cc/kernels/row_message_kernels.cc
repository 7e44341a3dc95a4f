// Kernels that put tensors before rows, and take them out again.
//
// A message is a matrix of the rows' width. In its first rows, its head, are
// the bytes of other tensors, each at a multiple of 64 bytes. The rows of the
// message behind them are the rows.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/tf/head_room.h"
#include "tf_syncrep/cc/tf/scalars.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::DEVICE_CPU;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// So sums of sizes cannot overflow.
constexpr int64_t kMaxElements = int64_t{1} << 40;

// The bytes of a tensor and those behind it, up to where the next one begins.
size_t Padded(size_t bytes) {
  constexpr size_t kAlignment = tensorflow::Allocator::kAllocatorAlignment;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

absl::Status CheckHead(int64_t head_rows, const Tensor& message, size_t bytes) {
  const auto row_bytes = static_cast<size_t>(message.dim_size(1)) *
                         tensorflow::DataTypeSize(message.dtype());
  if (bytes <= static_cast<size_t>(head_rows) * row_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("head_rows must have room for the others, ", bytes,
                   " bytes, but is ", head_rows, " rows of ", row_bytes));
}

absl::Status CheckTypes(OpKernelConstruction* ctx) {
  std::vector<DataType> types;
  TF_RETURN_IF_ERROR(ctx->GetAttr("Tothers", &types));
  for (const DataType type : types) {
    if (tensorflow::DataTypeSize(type) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("others must be numbers or truth values, but one is ",
                       tensorflow::DataTypeString(type)));
    }
  }
  return absl::OkStatus();
}

absl::Status GetShapes(OpKernelConstruction* ctx,
                       std::vector<TensorShape>* result) {
  std::vector<DataType> types;
  std::vector<PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(ctx->GetAttr("Tothers", &types));
  TF_RETURN_IF_ERROR(ctx->GetAttr("shapes", &shapes));
  if (shapes.size() != types.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shapes must be of ", types.size(),
                     " tensors, but are of ", shapes.size()));
  }
  for (const PartialTensorShape& shape : shapes) {
    TensorShape known;
    if (!shape.AsTensorShape(&known)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "shapes must be known, but one is ", shape.DebugString()));
    }
    if (known.num_elements() >= kMaxElements) {
      return absl::InvalidArgumentError(
          absl::StrCat("shapes must be of fewer than ", kMaxElements,
                       " elements, but one is ", known.DebugString()));
    }
    result->push_back(known);
  }
  return absl::OkStatus();
}

// A shape that a graph claims, by set_shape for example, is checked by nobody
// else: the tensors behind would be cut out of other places in silence.
absl::Status CheckShapes(const OpInputList& others,
                         const std::vector<TensorShape>& shapes) {
  for (int i = 0; i < others.size(); ++i) {
    if (others[i].shape() != shapes[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("others[", i, "] must have the shape that shapes say, ",
                       shapes[i].DebugString(), ", but has shape ",
                       others[i].shape().DebugString()));
    }
  }
  return absl::OkStatus();
}

class RowMessageOp final : public OpKernel {
 public:
  explicit RowMessageOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("head_rows", &head_rows_));
    OP_REQUIRES_OK(ctx, CheckTypes(ctx));
    OP_REQUIRES_OK(ctx, GetShapes(ctx, &shapes_));
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList others;
    OP_REQUIRES_OK(ctx, CheckMatrix(ctx->input(0), "rows"));
    OP_REQUIRES_OK(ctx, ctx->input_list("others", &others));
    OP_REQUIRES_OK(ctx, CheckShapes(others, shapes_));
    size_t bytes = 0;
    for (const Tensor& other : others) {
      bytes += Padded(other.TotalBytes());
    }
    OP_REQUIRES_OK(ctx, CheckHead(head_rows_, ctx->input(0), bytes));
    Tensor message;
    OP_REQUIRES_OK(ctx, ExtendIntoHeadRoom(ctx, 0, head_rows_, &message));
    auto* next = static_cast<char*>(message.data());
    for (const Tensor& other : others) {
      const size_t size = other.TotalBytes();
      if (size > 0) {
        std::memcpy(next, other.data(), size);
        // Nothing else of this process's memory is sent.
        std::memset(next + size, 0, Padded(size) - size);
        next += Padded(size);
      }
    }
    const size_t unused =
        static_cast<size_t>(head_rows_ * message.dim_size(1)) *
            tensorflow::DataTypeSize(message.dtype()) -
        bytes;
    if (unused > 0) {
      std::memset(next, 0, unused);
    }
    ctx->set_output(0, message);
  }

 private:
  int64_t head_rows_ = 0;
  // Set by the constructor, and never changed.
  std::vector<TensorShape> shapes_;
};

class RowMessagePartsOp final : public OpKernel {
 public:
  explicit RowMessagePartsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("head_rows", &head_rows_));
    OP_REQUIRES(ctx, head_rows_ >= 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "head_rows must not be negative, but is ", head_rows_)));
    OP_REQUIRES_OK(ctx, CheckTypes(ctx));
    OP_REQUIRES_OK(ctx, GetShapes(ctx, &shapes_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& message = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckMatrix(message, "message"));
    OP_REQUIRES(ctx, message.dim_size(0) >= head_rows_,
                absl::InvalidArgumentError(
                    absl::StrCat("message must have head_rows, ", head_rows_,
                                 ", or more, but has ", message.dim_size(0))));
    size_t bytes = 0;
    for (int i = 1; i < ctx->num_outputs(); ++i) {
      bytes += Padded(static_cast<size_t>(shapes_[i - 1].num_elements()) *
                      tensorflow::DataTypeSize(ctx->expected_output_dtype(i)));
    }
    OP_REQUIRES_OK(ctx, CheckHead(head_rows_, message, bytes));
    const auto* next = static_cast<const char*>(message.data());
    for (int i = 1; i < ctx->num_outputs(); ++i) {
      // They are copied, so that the rows are alone with the message's memory:
      // an accumulator can then keep them as they are.
      Tensor* other;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, shapes_[i - 1], &other));
      const size_t size = other->TotalBytes();
      if (size > 0) {
        std::memcpy(other->data(), next, size);
        next += Padded(size);
      }
    }
    const Tensor rows = RowsFrom(message, head_rows_);
    if (!rows.IsAligned()) {
      Tensor* copy;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(0, rows.shape(), &copy));
      if (rows.NumElements() > 0) {
        std::memcpy(copy->data(), rows.data(), rows.TotalBytes());
      }
      return;
    }
    ctx->set_output(0, rows);
  }

 private:
  int64_t head_rows_ = 0;
  // Set by the constructor, and never changed.
  std::vector<TensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(Name("Syncrep>RowMessage").Device(DEVICE_CPU),
                        RowMessageOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>RowMessageParts").Device(DEVICE_CPU),
                        RowMessagePartsOp);

}  // namespace
}  // namespace tf_syncrep
