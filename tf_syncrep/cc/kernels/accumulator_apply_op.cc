#include "tf_syncrep/cc/kernels/accumulator_apply_op.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tf_syncrep {

using tensorflow::AllocatorAttributes;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;

absl::Status LocalStepInput(OpKernelContext* ctx, int64_t* step) {
  const Tensor* input;
  TF_RETURN_IF_ERROR(ctx->input("local_step", &input));
  if (!TensorShapeUtils::IsScalar(input->shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("Argument local_step must be scalar, but had bad shape ",
                     input->shape().DebugString()));
  }
  *step = input->scalar<int64_t>()();
  return absl::OkStatus();
}

std::vector<int64_t> Dims(const TensorShape& shape) {
  std::vector<int64_t> dims;
  dims.reserve(shape.dims());
  for (int i = 0; i < shape.dims(); ++i) {
    dims.push_back(shape.dim_size(i));
  }
  return dims;
}

OwnedBuffer GradientInput(OpKernelContext* ctx, int index) {
  const Tensor& input = ctx->input(index);
  std::unique_ptr<Tensor> ours = ctx->forward_input(
      index, OpKernelContext::Params::kNoReservation, input.dtype(),
      input.shape(), ctx->input_memory_type(index), AllocatorAttributes());
  if (ours == nullptr || !ours->IsAligned()) {
    return {input.data(), nullptr};
  }
  const std::shared_ptr<Tensor> owner = std::move(ours);
  return {owner->data(), owner};
}

absl::Status OutOfMemoryForGradients(const char* what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("There is no memory for the ", what, " of gradients"));
}

absl::Status DenseShapeMismatch(const std::string& expected,
                                const TensorShape& received) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Shape mismatch: expected ", expected, ", got ", received.DebugString()));
}

}  // namespace tf_syncrep
