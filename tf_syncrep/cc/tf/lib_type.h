// The types by which cc/lib knows TensorFlow's element types.

#ifndef TF_SYNCREP_CC_TF_LIB_TYPE_H_
#define TF_SYNCREP_CC_TF_LIB_TYPE_H_

#include "tensorflow/core/framework/numeric_types.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {

// LibType<Eigen::half> is Half, LibType<float> is float.
template <typename T>
struct LibTypeOf {
  using type = T;
};
template <>
struct LibTypeOf<Eigen::half> {
  using type = Half;
};
template <>
struct LibTypeOf<Eigen::bfloat16> {
  using type = BFloat16;
};
template <typename T>
using LibType = typename LibTypeOf<T>::type;

}  // namespace tf_syncrep

// Expands REGISTER(T) for each type of variable that has kernels.
#define TF_SYNCREP_REGISTER_ALL_TYPES(REGISTER) \
  REGISTER(Eigen::half);                        \
  REGISTER(Eigen::bfloat16);                    \
  REGISTER(float);                              \
  REGISTER(double)

// Registers a kernel for CPUs and for GPUs. `builder` says which arguments GPUs
// have in the host's memory, as CPUs have all.
#define TF_SYNCREP_REGISTER_CPU_AND_GPU(builder, ...)             \
  REGISTER_KERNEL_BUILDER(builder.Device(tensorflow::DEVICE_CPU), \
                          __VA_ARGS__);                           \
  REGISTER_KERNEL_BUILDER(builder.Device(tensorflow::DEVICE_GPU), __VA_ARGS__)

#endif  // TF_SYNCREP_CC_TF_LIB_TYPE_H_
