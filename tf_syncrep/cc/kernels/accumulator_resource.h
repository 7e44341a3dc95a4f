// An accumulator as a TensorFlow resource.

#ifndef TF_SYNCREP_CC_KERNELS_ACCUMULATOR_RESOURCE_H_
#define TF_SYNCREP_CC_KERNELS_ACCUMULATOR_RESOURCE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/tf/reusable_tensor.h"

namespace tf_syncrep {

// What all users of an accumulator must agree on.
struct AccumulatorSpec {
  bool is_sparse;
  tensorflow::DataType dtype;
  tensorflow::PartialTensorShape shape;
  Reduction reduction;
  AccumulatorMode mode;

  // For example "sparse, dtype=float, shape=[?,64], reduction_type=MEAN,
  // mode=STEP".
  std::string DebugString() const;
};

class AccumulatorResource final : public tensorflow::ResourceBase {
 public:
  using SumMaker = std::function<std::unique_ptr<GradientSum>()>;

  // Where dense results are written.
  enum class ResultMemory {
    kKept,  // in the memory of the last result, if nobody holds it any more
    kNew,   // in new memory from TensorFlow's allocator
  };

  // `make_sum` makes sums for gradients of the spec's kind and dtype.
  AccumulatorResource(const AccumulatorSpec& spec, SumMaker make_sum,
                      ResultMemory result_memory);

  std::string DebugString() const override;

  const AccumulatorSpec& spec() const { return spec_; }
  Accumulator& accumulator() { return accumulator_; }

  // Allocates a tensor of `shape`, on the op's device, for a dense sum or
  // result. Its contents are arbitrary.
  absl::Status Allocate(tensorflow::OpKernelContext* ctx,
                        tensorflow::DataType dtype,
                        const tensorflow::TensorShape& shape,
                        tensorflow::Tensor* tensor);

  // Keeps the result that was taken last, whose memory may be reused when
  // nobody else holds it any more.
  void Keep(const tensorflow::Tensor& result);

 private:
  const AccumulatorSpec spec_;
  Accumulator accumulator_;
  const ResultMemory result_memory_;
  ReusableTensor taken_memory_;
};

// Returns an Internal error if the device did not accept the work of computing
// the sum.
absl::Status SumStatus(const GradientSum& sum);

using AccumulatorPtr = tensorflow::core::RefCountPtr<AccumulatorResource>;

// Finds the accumulator of the op's input "handle".
absl::Status LookupAccumulator(tensorflow::OpKernelContext* ctx,
                               AccumulatorPtr* accumulator);

// The same; returns InvalidArgument unless it is for gradients of this kind and
// dtype.
absl::Status LookupAccumulator(tensorflow::OpKernelContext* ctx, bool is_sparse,
                               tensorflow::DataType dtype,
                               AccumulatorPtr* accumulator);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_ACCUMULATOR_RESOURCE_H_
