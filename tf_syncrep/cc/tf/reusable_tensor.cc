#include "tf_syncrep/cc/tf/reusable_tensor.h"

#include <cstdint>
#include <utility>

#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/lib/huge_pages.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Smaller tensors get memory from the heap that was used before.
constexpr int64_t kMinKeptBytes = 4 << 20;

// For more rows than were asked for, so that the next call, which may need some
// more, can have the same memory. Rows that nobody touches take none.
constexpr int64_t kRowsPerSpareRow = 8;

bool WillDo(const Tensor& tensor, DataType dtype, const TensorShape& shape,
            ReusableTensor::Rows rows) {
  if (!tensor.IsInitialized() || tensor.dtype() != dtype ||
      tensor.dims() != shape.dims()) {
    return false;
  }
  if (tensor.shape() == shape) {
    return true;
  }
  for (int i = 1; i < shape.dims(); ++i) {
    if (tensor.dim_size(i) != shape.dim_size(i)) {
      return false;
    }
  }
  return rows == ReusableTensor::Rows::kAtLeast && shape.dims() > 0 &&
         tensor.dim_size(0) >= shape.dim_size(0) &&
         tensor.dim_size(0) / 2 <= shape.dim_size(0);
}

}  // namespace

absl::Status ReusableTensor::Get(OpKernelContext* ctx, DataType dtype,
                                 const TensorShape& shape, Rows rows,
                                 Tensor* tensor) {
  std::lock_guard<std::mutex> lock(mu_);
  // Where ours is the only reference, nobody can make another.
  if (WillDo(kept_, dtype, shape, rows) && kept_.RefCountIsOne()) {
    *tensor = std::exchange(kept_, Tensor());
    last_given_ = tensor->data();
    return absl::OkStatus();
  }
  kept_ = Tensor();
  TensorShape new_shape = shape;
  if (rows == Rows::kAtLeast && shape.dims() > 0 &&
      shape.num_elements() * tensorflow::DataTypeSize(dtype) >= kMinKeptBytes) {
    new_shape.set_dim(0,
                      shape.dim_size(0) + shape.dim_size(0) / kRowsPerSpareRow);
  }
  absl::Status status = ctx->allocate_temp(dtype, new_shape, tensor);
  if (status.ok()) {
    AdviseHugePages(tensor->data(), tensor->TotalBytes());
    last_given_ = tensor->data();
  }
  return status;
}

void ReusableTensor::Keep(const Tensor& tensor) {
  Tensor previous;  // freed after the lock
  std::lock_guard<std::mutex> lock(mu_);
  if (tensor.data() != last_given_) {
    return;
  }
  previous = std::exchange(
      kept_, static_cast<int64_t>(tensor.TotalBytes()) >= kMinKeptBytes
                 ? tensor
                 : Tensor());
}

}  // namespace tf_syncrep
