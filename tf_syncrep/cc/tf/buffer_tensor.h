// A tensor over memory that did not come from TensorFlow's allocator.

#ifndef TF_SYNCREP_CC_TF_BUFFER_TENSOR_H_
#define TF_SYNCREP_CC_TF_BUFFER_TENSOR_H_

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"

namespace tf_syncrep {

// Returns a tensor whose elements, of a plain type, are at the beginning of
// `buffer`, which is aligned to a cache line. It takes over the buffer's owner,
// and releases it when nobody holds the tensor any more.
tensorflow::Tensor BufferTensor(tensorflow::DataType dtype,
                                const tensorflow::TensorShape& shape,
                                OwnedBuffer buffer);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_BUFFER_TENSOR_H_
