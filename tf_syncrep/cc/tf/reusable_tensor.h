// The memory of a large output, used again for the next one.

#ifndef TF_SYNCREP_CC_TF_REUSABLE_TENSOR_H_
#define TF_SYNCREP_CC_TF_REUSABLE_TENSOR_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// Keeps a reference to the tensor that was given away last, and gives it away
// again when nobody else holds it any more: fresh memory costs a page fault for
// each page, which takes longer than what it is then used for. Small tensors
// are not kept. Thread-safe.
class ReusableTensor {
 public:
  // A tensor of `shape`: the one that was kept, if it is like this, or a new
  // one. Its contents are arbitrary.
  absl::Status Get(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype,
                   const tensorflow::TensorShape& shape,
                   tensorflow::Tensor* tensor);

  // Keeps `tensor` in place of any other, if it was the last to come from
  // Get().
  void Keep(const tensorflow::Tensor& tensor);

 private:
  Mutex mu_;
  tensorflow::Tensor kept_ TF_SYNCREP_GUARDED_BY(mu_);
  // Memory of the last tensor from Get().
  const void* last_given_ TF_SYNCREP_GUARDED_BY(mu_) = nullptr;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_REUSABLE_TENSOR_H_
