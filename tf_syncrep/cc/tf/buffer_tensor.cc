#include "tf_syncrep/cc/tf/buffer_tensor.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/core/refcount.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::TensorShape;

class OwnedTensorBuffer final : public TensorBuffer {
 public:
  OwnedTensorBuffer(OwnedBuffer buffer, size_t bytes)
      : TensorBuffer(buffer.data), buffer_(std::move(buffer)), bytes_(bytes) {}

  size_t size() const override { return bytes_; }

  TensorBuffer* root_buffer() override { return this; }

  void FillAllocationDescription(
      tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocator_name("tf_syncrep");
  }

 private:
  const OwnedBuffer buffer_;
  const size_t bytes_;
};

}  // namespace

Tensor BufferTensor(DataType dtype, const TensorShape& shape,
                    OwnedBuffer buffer) {
  const size_t bytes = static_cast<size_t>(shape.num_elements()) *
                       tensorflow::DataTypeSize(dtype);
  if (bytes == 0) {
    return Tensor(dtype, shape);
  }
  // The tensor holds a reference of its own.
  const tensorflow::core::RefCountPtr<TensorBuffer> tensor_buffer(
      new OwnedTensorBuffer(std::move(buffer), bytes));
  return Tensor(dtype, shape, tensor_buffer.get());
}

}  // namespace tf_syncrep
