#include "tf_syncrep/cc/kernels/accumulator_resource.h"

#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/chunk_pool.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::OpKernelContext;

template <typename T>
std::function<std::unique_ptr<GradientSum>()> SumMakerOf(bool is_sparse) {
  if (!is_sparse) {
    return [] { return std::make_unique<DenseGradientSum<T>>(); };
  }
  return [pool = std::make_shared<ChunkPool>()] {
    return std::make_unique<SparseGradientSum<T>>(pool);
  };
}

std::function<std::unique_ptr<GradientSum>()> SumMaker(
    const AccumulatorSpec& spec) {
  switch (spec.dtype) {
    case tensorflow::DT_HALF:
      return SumMakerOf<Half>(spec.is_sparse);
    case tensorflow::DT_BFLOAT16:
      return SumMakerOf<BFloat16>(spec.is_sparse);
    case tensorflow::DT_DOUBLE:
      return SumMakerOf<double>(spec.is_sparse);
    default:
      return SumMakerOf<float>(spec.is_sparse);
  }
}

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

AccumulatorResource::AccumulatorResource(const AccumulatorSpec& spec)
    : spec_(spec), accumulator_(spec.mode, SumMaker(spec)) {}

std::string AccumulatorResource::DebugString() const {
  return absl::StrCat("Accumulator: ", spec_.DebugString());
}

absl::Status LookupAccumulator(OpKernelContext* ctx,
                               AccumulatorPtr* accumulator) {
  const tensorflow::Tensor* handle;
  TF_RETURN_IF_ERROR(ctx->input("handle", &handle));
  if (handle->NumElements() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle must be a scalar, but has shape ",
                     handle->shape().DebugString()));
  }
  return tensorflow::LookupResource(
      ctx, handle->flat<tensorflow::ResourceHandle>()(0), accumulator);
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
