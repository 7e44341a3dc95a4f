// Tensors as bodies of frames.

#ifndef TF_SYNCREP_CC_WIRE_TENSOR_FRAMES_H_
#define TF_SYNCREP_CC_WIRE_TENSOR_FRAMES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/lib/wire/connection.h"
#include "tf_syncrep/cc/lib/wire/frame_reader.h"

namespace tf_syncrep {
namespace wire {

// The meta of a request for a tensor: the step and the key of the rendezvous.
std::string WriteTensorKey(int64_t step, absl::string_view key);

// Returns false if `meta` is none.
bool ReadTensorKey(std::string_view meta, int64_t* step, std::string* key);

// An answer with a tensor of the CPU. The bytes of numbers are not copied;
// strings and the like go as a TensorProto. `body` keeps the tensor.
void WriteTensor(const tensorflow::Tensor& tensor, bool is_dead,
                 std::string* meta, OutBody* body);

// Makes memory for the body of such an answer: for numbers the tensor itself,
// by `allocator`. Null if meta and size do not fit each other, or there is no
// memory.
std::unique_ptr<Body> MakeTensorBody(std::string_view meta, uint64_t size,
                                     tensorflow::Allocator* allocator);

// Makes a tensor of an answer, whose body, if there is one, MakeTensorBody has
// made.
absl::Status ReadTensor(std::string_view meta, Body* body,
                        tensorflow::Allocator* allocator,
                        tensorflow::Tensor* tensor, bool* is_dead);

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_WIRE_TENSOR_FRAMES_H_
