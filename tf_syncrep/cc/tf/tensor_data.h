// The elements of a tensor, wherever in memory they begin.

#ifndef TF_SYNCREP_CC_TF_TENSOR_DATA_H_
#define TF_SYNCREP_CC_TF_TENSOR_DATA_H_

#include "tensorflow/core/framework/tensor.h"

namespace tf_syncrep {

// The elements, which are of type T, or of the type that T is cc/lib's name
// for. In place of TensorFlow's flat<T>(), vec<T>(), matrix<T>() and
// scalar<T>(): those end the process where the memory does not begin at a
// multiple of 64 bytes, and that of a tensor which somebody made by DLPack, or
// of a variable to which it was assigned, may begin anywhere.
template <typename T>
T* Data(const tensorflow::Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_TENSOR_DATA_H_
