#include "tf_syncrep/cc/wire/tensor_frames.h"

#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/wire/methods.h"

namespace tf_syncrep {
namespace wire {
namespace {

using tensorflow::Allocator;
using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorProto;
using tensorflow::TensorShape;

// The beginning of the meta; the sizes of dimensions follow, 8 bytes each.
struct Description {
  int32_t dtype;
  uint8_t is_dead;
  uint8_t is_proto;  // no dimensions follow then
  uint16_t num_dims;
};
static_assert(sizeof(Description) == 8);

struct Described {
  Description head;
  TensorShape shape;
};

std::optional<Described> Read(std::string_view meta) {
  Described described;
  if (meta.size() < sizeof described.head) {
    return std::nullopt;
  }
  std::memcpy(&described.head, meta.data(), sizeof described.head);
  meta.remove_prefix(sizeof described.head);
  const Description& head = described.head;
  if (!tensorflow::DataType_IsValid(head.dtype) ||
      head.num_dims > TensorShape::MaxDimensions() ||
      meta.size() != sizeof(int64_t) * head.num_dims ||
      (head.is_proto == 0 &&
       !tensorflow::DataTypeCanUseMemcpy(static_cast<DataType>(head.dtype)))) {
    return std::nullopt;
  }
  for (int i = 0; i < head.num_dims; ++i) {
    int64_t size;
    std::memcpy(&size, meta.data() + sizeof size * i, sizeof size);
    if (!described.shape.AddDimWithStatus(size).ok()) {
      return std::nullopt;
    }
  }
  return described;
}

class TensorBody : public Body {
 public:
  explicit TensorBody(Tensor tensor) : tensor_(std::move(tensor)) {}
  char* data() override { return static_cast<char*>(tensor_.data()); }
  const Tensor& tensor() const { return tensor_; }

 private:
  const Tensor tensor_;
};

}  // namespace

std::string WriteTensorKey(int64_t step, absl::string_view key) {
  std::string meta(reinterpret_cast<const char*>(&step), sizeof step);
  meta.append(key.data(), key.size());
  return meta;
}

bool ReadTensorKey(std::string_view meta, int64_t* step, std::string* key) {
  if (meta.size() < sizeof *step) {
    return false;
  }
  std::memcpy(step, meta.data(), sizeof *step);
  key->assign(meta.substr(sizeof *step));
  return true;
}

void WriteTensor(const Tensor& tensor, bool is_dead, std::string* meta,
                 OutBody* body) {
  const bool is_proto = !tensorflow::DataTypeCanUseMemcpy(tensor.dtype());
  const Description head{tensor.dtype(), is_dead, is_proto,
                         static_cast<uint16_t>(is_proto ? 0 : tensor.dims())};
  meta->assign(reinterpret_cast<const char*>(&head), sizeof head);
  if (is_proto) {
    TensorProto proto;
    tensor.AsProtoTensorContent(&proto);
    *body = OutBody::Of(proto.SerializeAsString());
    return;
  }
  for (int i = 0; i < tensor.dims(); ++i) {
    const int64_t size = tensor.dim_size(i);
    meta->append(reinterpret_cast<const char*>(&size), sizeof size);
  }
  if (tensor.TotalBytes() > 0) {
    auto owner = std::make_shared<const Tensor>(tensor);
    *body = {static_cast<const char*>(owner->data()), owner->TotalBytes(),
             owner};
  }
}

std::unique_ptr<Body> MakeTensorBody(std::string_view meta, uint64_t size,
                                     Allocator* allocator) {
  const auto described = Read(meta);
  if (!described) {
    return nullptr;
  }
  try {
    if (described->head.is_proto != 0) {
      return size > kMostOfACall ? nullptr : std::make_unique<TextBody>(size);
    }
    const auto dtype = static_cast<DataType>(described->head.dtype);
    const uint64_t element = tensorflow::DataTypeSize(dtype);
    if (element == 0 || size % element != 0 ||
        size / element !=
            static_cast<uint64_t>(described->shape.num_elements())) {
      return nullptr;
    }
    Tensor tensor(allocator, dtype, described->shape);
    return tensor.IsInitialized() ? std::make_unique<TensorBody>(tensor)
                                  : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

absl::Status ReadTensor(std::string_view meta, Body* body, Allocator* allocator,
                        Tensor* tensor, bool* is_dead) {
  const auto described = Read(meta);
  if (!described) {
    return absl::InternalError("not a tensor, on the wire");
  }
  *is_dead = described->head.is_dead != 0;
  const auto dtype = static_cast<DataType>(described->head.dtype);
  if (described->head.is_proto != 0) {
    TensorProto proto;
    if (body == nullptr ||
        !proto.ParseFromString(static_cast<TextBody*>(body)->text()) ||
        !tensor->FromProto(allocator, proto)) {
      return absl::InternalError("not a TensorProto, on the wire");
    }
  } else if (body != nullptr) {
    *tensor = static_cast<TensorBody*>(body)->tensor();
  } else if (described->shape.num_elements() == 0) {
    *tensor = Tensor(allocator, dtype, described->shape);
  } else {
    return absl::InternalError("a tensor without its numbers");
  }
  return absl::OkStatus();
}

}  // namespace wire
}  // namespace tf_syncrep
