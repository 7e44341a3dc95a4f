// An accumulator as a TensorFlow resource, and the op that makes it.

#ifndef TF_SYNCREP_CC_KERNELS_ACCUMULATOR_RESOURCE_H_
#define TF_SYNCREP_CC_KERNELS_ACCUMULATOR_RESOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tf_syncrep/cc/kernels/counted_resource_op.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/chunk_pool.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"

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

  // `make_sum` makes sums for gradients of the spec's kind and dtype. With
  // `reuses_memory` large dense sums and results, which must be on the host,
  // are written to memory of earlier ones that nobody holds any more.
  AccumulatorResource(const AccumulatorSpec& spec, SumMaker make_sum,
                      bool reuses_memory);

  std::string DebugString() const override;

  const AccumulatorSpec& spec() const { return spec_; }
  Accumulator& accumulator() { return accumulator_; }

  // Returns memory, on the op's device, for a dense sum or result. Its owner is
  // a tensor of `shape`; it has none when there is no memory.
  OwnedBuffer Allocate(tensorflow::OpKernelContext* ctx,
                       tensorflow::DataType dtype,
                       const tensorflow::TensorShape& shape);

 private:
  const AccumulatorSpec spec_;
  Accumulator accumulator_;
  const std::shared_ptr<ChunkPool> chunks_;  // null if memory is not reused
};

// Makes an accumulator, or finds the one of its shared name. Subclasses say
// where its sums are.
class AccumulatorOp : public CountedResourceOp<AccumulatorResource> {
 public:
  AccumulatorOp(tensorflow::OpKernelConstruction* ctx, bool is_sparse);

 private:
  virtual AccumulatorResource::SumMaker MakeSumMaker() = 0;

  absl::Status CreateResource(AccumulatorResource** resource) override;
  absl::Status VerifyResource(AccumulatorResource* resource) override;

  AccumulatorSpec spec_;
  const bool reuses_memory_;
};

// Returns an Internal error if the device did not accept the work of computing
// the sum.
absl::Status SumStatus(const GradientSum& sum);

using AccumulatorPtr = tensorflow::core::RefCountPtr<AccumulatorResource>;

// Finds the accumulator of the op's input "handle". Returns InvalidArgument
// unless it is for gradients of this kind and dtype.
absl::Status LookupAccumulator(tensorflow::OpKernelContext* ctx, bool is_sparse,
                               tensorflow::DataType dtype,
                               AccumulatorPtr* accumulator);

absl::Status CheckMode(const AccumulatorResource& accumulator,
                       AccumulatorMode mode);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_ACCUMULATOR_RESOURCE_H_
