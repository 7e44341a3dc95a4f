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

// Smaller tensors get memory of the heap that was used before.
constexpr int64_t kMinKeptBytes = 4 << 20;

}  // namespace

absl::Status ReusableTensor::Get(OpKernelContext* ctx, DataType dtype,
                                 const TensorShape& shape, Tensor* tensor) {
  const MutexLock lock(mu_);
  // If kept_ has the only reference, nobody can make another.
  if (kept_.IsInitialized() && kept_.dtype() == dtype &&
      kept_.shape() == shape && kept_.RefCountIsOne()) {
    *tensor = std::exchange(kept_, Tensor());
    last_given_ = tensor->data();
    return absl::OkStatus();
  }
  kept_ = Tensor();
  absl::Status status = ctx->allocate_temp(dtype, shape, tensor);
  if (status.ok()) {
    AdviseHugePages(tensor->data(), tensor->TotalBytes());
    last_given_ = tensor->data();
  }
  return status;
}

void ReusableTensor::Keep(const Tensor& tensor) {
  Tensor previous;  // freed after the lock
  const MutexLock lock(mu_);
  if (tensor.data() != last_given_) {
    return;
  }
  previous = std::exchange(
      kept_, static_cast<int64_t>(tensor.TotalBytes()) >= kMinKeptBytes
                 ? tensor
                 : Tensor());
}

}  // namespace tf_syncrep
