#include "tf_syncrep/cc/kernels/accumulator_resource.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/tf/scalar_input.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

const char* ReductionName(Reduction reduction) {
  switch (reduction) {
    case Reduction::kMean:
      return "MEAN";
    case Reduction::kSum:
      return "SUM";
    case Reduction::kCountedMean:
      break;
  }
  return "CMEAN";
}

const char* ModeName(AccumulatorMode mode) {
  return mode == AccumulatorMode::kStep ? "STEP" : "ROUND";
}

const char* KindName(bool is_sparse) { return is_sparse ? "sparse" : "dense"; }

}  // namespace

std::string AccumulatorSpec::DebugString() const {
  return absl::StrCat(KindName(is_sparse), ", dtype=", DataTypeString(dtype),
                      ", shape=", shape.DebugString(),
                      ", reduction_type=", ReductionName(reduction),
                      ", mode=", ModeName(mode));
}

AccumulatorResource::AccumulatorResource(const AccumulatorSpec& spec,
                                         SumMaker make_sum,
                                         ResultMemory result_memory)
    : spec_(spec),
      accumulator_(spec.mode, std::move(make_sum)),
      result_memory_(result_memory) {}

std::string AccumulatorResource::DebugString() const {
  return absl::StrCat("Accumulator: ", spec_.DebugString());
}

absl::Status AccumulatorResource::Allocate(OpKernelContext* ctx, DataType dtype,
                                           const TensorShape& shape,
                                           Tensor* tensor) {
  if (result_memory_ == ResultMemory::kNew) {
    return ctx->allocate_temp(dtype, shape, tensor);
  }
  return taken_memory_.Get(ctx, dtype, shape, tensor);
}

void AccumulatorResource::Keep(const Tensor& result) {
  if (result_memory_ == ResultMemory::kKept) {
    taken_memory_.Keep(result);
  }
}

absl::Status SumStatus(const GradientSum& sum) {
  if (sum.error() == nullptr) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("Gradients were not summed: ", sum.error()));
}

absl::Status LookupAccumulator(OpKernelContext* ctx,
                               AccumulatorPtr* accumulator) {
  TF_RETURN_IF_ERROR(CheckScalarInput(ctx, "handle"));
  const tensorflow::Tensor* handle;
  TF_RETURN_IF_ERROR(ctx->input("handle", &handle));
  return tensorflow::LookupResource(
      ctx, handle->scalar<tensorflow::ResourceHandle>()(), accumulator);
}

absl::Status LookupAccumulator(OpKernelContext* ctx, bool is_sparse,
                               DataType dtype, AccumulatorPtr* accumulator) {
  TF_RETURN_IF_ERROR(LookupAccumulator(ctx, accumulator));
  const AccumulatorSpec& spec = (*accumulator)->spec();
  if (spec.is_sparse != is_sparse || spec.dtype != dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "handle must be of a ", KindName(is_sparse), " accumulator of dtype ",
        DataTypeString(dtype), ", but is of a ", KindName(spec.is_sparse),
        " one of dtype ", DataTypeString(spec.dtype)));
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep
