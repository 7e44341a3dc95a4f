#include "tf_syncrep/cc/kernels/accumulator_resource.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/tf/buffer_tensor.h"

namespace tf_syncrep {
namespace {

// Smaller tensors get memory of the heap that was used before.
constexpr size_t kMinReusedBytes = size_t{4} << 20;

using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::OpKernelConstruction;
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
                                         SumMaker make_sum, bool reuses_memory)
    : spec_(spec),
      accumulator_(spec.mode, std::move(make_sum)),
      chunks_(reuses_memory ? std::make_shared<ChunkPool>() : nullptr) {}

std::string AccumulatorResource::DebugString() const {
  return absl::StrCat("Accumulator: ", spec_.DebugString());
}

OwnedBuffer AccumulatorResource::Allocate(OpKernelContext* ctx, DataType dtype,
                                          const TensorShape& shape) {
  const auto owner = std::make_shared<Tensor>();
  const size_t bytes = static_cast<size_t>(shape.num_elements()) *
                       tensorflow::DataTypeSize(dtype);
  if (chunks_ != nullptr && bytes >= kMinReusedBytes) {
    OwnedBuffer buffer = ChunkPool::Get(chunks_, bytes).buffer;
    if (buffer.owner == nullptr) {
      return {};
    }
    chunks_->EndRound(bytes);
    *owner = BufferTensor(dtype, shape, std::move(buffer));
  } else if (!ctx->allocate_temp(dtype, shape, owner.get()).ok()) {
    return {};
  }
  return {owner->data(), owner};
}

// TensorFlow's allocator on GPUs reuses memory by itself.
AccumulatorOp::AccumulatorOp(OpKernelConstruction* ctx, bool is_sparse)
    : CountedResourceOp(ctx),
      reuses_memory_(ctx->device_type() == tensorflow::DEVICE_CPU) {
  std::string reduction;
  std::string mode;
  OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &spec_.dtype));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("shape", &spec_.shape));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("reduction_type", &reduction));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("mode", &mode));
  spec_.is_sparse = is_sparse;
  // The op's definition allows no other strings.
  spec_.reduction = reduction == "SUM"     ? Reduction::kSum
                    : reduction == "CMEAN" ? Reduction::kCountedMean
                                           : Reduction::kMean;
  spec_.mode =
      mode == "ROUND" ? AccumulatorMode::kRound : AccumulatorMode::kStep;
}

absl::Status AccumulatorOp::CreateResource(AccumulatorResource** resource) {
  *resource = new AccumulatorResource(spec_, MakeSumMaker(), reuses_memory_);
  return absl::OkStatus();
}

absl::Status AccumulatorOp::VerifyResource(AccumulatorResource* resource) {
  return CheckSame("accumulator", resource->spec().DebugString(),
                   spec_.DebugString());
}

absl::Status SumStatus(const GradientSum& sum) {
  if (sum.error() == nullptr) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("Gradients were not summed: ", sum.error()));
}

absl::Status LookupAccumulator(OpKernelContext* ctx, bool is_sparse,
                               DataType dtype, AccumulatorPtr* accumulator) {
  TF_RETURN_IF_ERROR(LookupHandle(ctx, accumulator));
  const AccumulatorSpec& spec = (*accumulator)->spec();
  if (spec.is_sparse != is_sparse || spec.dtype != dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "handle must be of a ", KindName(is_sparse), " accumulator of dtype ",
        DataTypeString(dtype), ", but is of a ", KindName(spec.is_sparse),
        " one of dtype ", DataTypeString(spec.dtype)));
  }
  return absl::OkStatus();
}

absl::Status CheckMode(const AccumulatorResource& accumulator,
                       AccumulatorMode mode) {
  if (accumulator.spec().mode == mode) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "handle must be of an accumulator with mode=", ModeName(mode),
      ", but is of one with ", accumulator.spec().DebugString()));
}

}  // namespace tf_syncrep
