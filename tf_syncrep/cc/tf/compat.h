// The differences between the supported versions of TensorFlow's C++ API.

#ifndef TF_SYNCREP_CC_TF_COMPAT_H_
#define TF_SYNCREP_CC_TF_COMPAT_H_

#include "tensorflow/core/platform/mutex.h"

namespace tf_syncrep {

// The type that tensorflow::Var::mu() points to. From TF 2.21 on the name
// tensorflow::mutex is deprecated (in favour of absl::Mutex), but the type of
// mu() is not.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
using VariableMutex = tensorflow::mutex;
#pragma GCC diagnostic pop

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_COMPAT_H_
