// The elements of a tensor, wherever in memory they begin.

#ifndef TF_SYNCREP_CC_TF_TENSOR_DATA_H_
#define TF_SYNCREP_CC_TF_TENSOR_DATA_H_

#include "tensorflow/core/framework/tensor.h"

namespace tf_syncrep {

// Returns the elements, which are of type T, or of the type for which T is
// cc/lib's name. It replaces TensorFlow's flat<T>(), vec<T>(), matrix<T>() and
// scalar<T>(), which end the process if the memory does not begin at a multiple
// of 64 bytes. The memory of a tensor that was made by DLPack, or of a variable
// to which such a tensor was assigned, may begin anywhere.
template <typename T>
T* Data(const tensorflow::Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_TENSOR_DATA_H_
