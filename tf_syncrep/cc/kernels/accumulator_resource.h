// An accumulator as a TensorFlow resource.

#ifndef TF_SYNCREP_CC_KERNELS_ACCUMULATOR_RESOURCE_H_
#define TF_SYNCREP_CC_KERNELS_ACCUMULATOR_RESOURCE_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/tf/reusable_tensor.h"

namespace tf_syncrep {

// What all that share an accumulator must agree on.
struct AccumulatorSpec {
  bool is_sparse;
  tensorflow::DataType dtype;
  tensorflow::PartialTensorShape shape;
  Reduction reduction;
  AccumulatorMode mode;

  // Such as "sparse, dtype=float, shape=[?,64], reduction_type=MEAN,
  // mode=STEP".
  std::string DebugString() const;
};

class AccumulatorResource final : public tensorflow::ResourceBase {
 public:
  // The dtype is half, bfloat16, float or double.
  explicit AccumulatorResource(const AccumulatorSpec& spec);

  std::string DebugString() const override;

  const AccumulatorSpec& spec() const { return spec_; }
  Accumulator& accumulator() { return accumulator_; }

  // Memory of the gradient that was taken last.
  ReusableTensor& taken_memory() { return taken_memory_; }

 private:
  const AccumulatorSpec spec_;
  Accumulator accumulator_;
  ReusableTensor taken_memory_;
};

using AccumulatorPtr = tensorflow::core::RefCountPtr<AccumulatorResource>;

// The accumulator behind the op's input "handle".
absl::Status LookupAccumulator(tensorflow::OpKernelContext* ctx,
                               AccumulatorPtr* accumulator);

// The same; InvalidArgument unless it is for such gradients.
absl::Status LookupAccumulator(tensorflow::OpKernelContext* ctx, bool is_sparse,
                               tensorflow::DataType dtype,
                               AccumulatorPtr* accumulator);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_ACCUMULATOR_RESOURCE_H_
