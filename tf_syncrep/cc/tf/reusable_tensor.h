// The memory of a large output, which is used again for the next one.

#ifndef TF_SYNCREP_CC_TF_REUSABLE_TENSOR_H_
#define TF_SYNCREP_CC_TF_REUSABLE_TENSOR_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// Keeps a reference to the tensor that was returned last, and returns it again
// when nobody else holds it any more. Fresh memory costs a page fault for each
// page, and that takes longer than using the memory. Small tensors are not
// kept. Thread-safe.
class ReusableTensor {
 public:
  // Returns a tensor of `shape`: the kept one if it has this shape and dtype,
  // or a new one. Its contents are arbitrary.
  absl::Status Get(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype,
                   const tensorflow::TensorShape& shape,
                   tensorflow::Tensor* tensor);

  // Keeps `tensor`, if it was the last that Get() returned, in place of any
  // other.
  void Keep(const tensorflow::Tensor& tensor);

 private:
  Mutex mu_;
  tensorflow::Tensor kept_ TF_SYNCREP_GUARDED_BY(mu_);
  // The memory of the last tensor from Get().
  const void* last_given_ TF_SYNCREP_GUARDED_BY(mu_) = nullptr;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_REUSABLE_TENSOR_H_
