#include "tf_syncrep/cc/kernels/checkpoint_inputs.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;

absl::Status LookupAll(OpKernelContext* ctx, absl::string_view name,
                       std::vector<VariableRef>* variables) {
  OpInputList handles;
  TF_RETURN_IF_ERROR(ctx->input_list(name, &handles));
  for (int i = 0; i < handles.size(); ++i) {
    TF_RETURN_IF_ERROR(
        CheckScalar(handles[i], absl::StrCat(name, "[", i, "]")));
    variables->emplace_back();
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(
        ctx, *Data<const tensorflow::ResourceHandle>(handles[i]),
        &variables->back()));
  }
  return absl::OkStatus();
}

// Adds the variables of an input that only the ops for reference variables
// have.
void AddReferences(OpKernelContext* ctx, std::vector<HeldVariable>* variables) {
  int begin = 0;
  int end = 0;
  if (!ctx->op_kernel().InputRange("references", &begin, &end).ok()) {
    return;
  }
  for (int i = begin; i < end; ++i) {
    variables->emplace_back(ctx, i);
  }
}

}  // namespace

absl::Status ReadNames(OpKernelContext* ctx, absl::string_view name,
                       int64_t num, std::vector<std::string>* names) {
  const Tensor* input;
  TF_RETURN_IF_ERROR(ctx->input(name, &input));
  if (input->dims() != 1 || input->NumElements() != num) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be a vector of ", num,
                     " names, but has shape ", input->shape().DebugString()));
  }
  for (int64_t i = 0; i < num; ++i) {
    names->emplace_back(Data<const tstring>(*input)[i]);
  }
  return absl::OkStatus();
}

absl::Status ReadCheckpointInputs(OpKernelContext* ctx,
                                  CheckpointInputs* inputs) {
  std::vector<VariableRef> resources;
  TF_RETURN_IF_ERROR(LookupAll(ctx, "variables", &resources));
  std::vector<HeldVariable> variables;
  variables.reserve(resources.size());
  for (VariableRef& resource : resources) {
    variables.emplace_back(std::move(resource));
  }
  AddReferences(ctx, &variables);
  const Tensor* sizes;
  TF_RETURN_IF_ERROR(ctx->input("group_sizes", &sizes));
  std::vector<int64_t> group_sizes;
  auto next = variables.begin();
  for (int64_t i = 0; sizes->dims() == 1 && i < sizes->NumElements(); ++i) {
    const int64_t size = ReadOnce(Data<const int64_t>(*sizes) + i);
    if (size < 1 || size > variables.end() - next) {
      break;
    }
    group_sizes.push_back(size);
    auto& group = inputs->groups.emplace_back();
    for (int64_t k = 0; k < size; ++k) {
      group.push_back(std::move(*next++));
    }
  }
  if (sizes->dims() != 1 || next != variables.end() ||
      static_cast<int64_t>(group_sizes.size()) != sizes->NumElements()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group_sizes must be positive, and sum up to the ", variables.size(),
        " variables, but is ", sizes->SummarizeValue(16)));
  }
  TF_RETURN_IF_ERROR(ReadPieces(ctx, group_sizes, &inputs->pieces));
  std::vector<VariableRef> wholes;
  std::vector<std::string> names;
  TF_RETURN_IF_ERROR(LookupAll(ctx, "wholes", &wholes));
  TF_RETURN_IF_ERROR(ReadNames(ctx, "whole_names",
                               static_cast<int64_t>(wholes.size()), &names));
  for (size_t i = 0; i < wholes.size(); ++i) {
    inputs->wholes.emplace_back(std::move(names[i]), std::move(wholes[i]));
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep
