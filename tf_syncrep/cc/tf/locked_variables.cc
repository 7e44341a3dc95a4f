#include "tf_syncrep/cc/tf/locked_variables.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/tf/scalars.h"

namespace tf_syncrep {
namespace {

using tensorflow::AllocatorAttributes;
using tensorflow::DataTypeString;
using tensorflow::Device;
using tensorflow::DT_RESOURCE;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Copies to a tensor of the same size, on the op's own device. On a GPU, work
// that is put into the stream afterwards sees the copy.
absl::Status CopyElements(OpKernelContext* ctx, const Tensor& from,
                          Tensor* to) {
  if (ctx->device()->tensorflow_accelerator_device_info() == nullptr) {
    std::memcpy(to->data(), from.data(), from.TotalBytes());
    return absl::OkStatus();
  }
  absl::Status status;
  absl::Notification is_in_stream;
  ctx->op_device_context()->CopyTensorInSameDevice(
      &from, static_cast<Device*>(ctx->device()), to,
      [&](const absl::Status& result) {
        status = result;
        is_in_stream.Notify();
      });
  is_in_stream.WaitForNotification();
  return status;
}

// Gives `tensor` a buffer that nobody else holds, with the same contents.
absl::Status CopyBuffer(OpKernelContext* ctx, Tensor* tensor) {
  AllocatorAttributes attributes;
  attributes.set_gpu_compatible(true);
  attributes.set_nic_compatible(true);
  Tensor copy;
  TF_RETURN_IF_ERROR(
      ctx->allocate_temp(tensor->dtype(), tensor->shape(), &copy, attributes));
  if (tensor->TotalBytes() > 0) {
    TF_RETURN_IF_ERROR(CopyElements(ctx, *tensor, &copy));
  }
  *tensor = copy;
  return absl::OkStatus();
}

absl::Status NotInitialized(absl::string_view name, absl::string_view detail) {
  return absl::FailedPreconditionError(absl::StrCat(
      name, " is not initialized: it must be initialized before it is updated",
      detail.empty() ? "" : " (", detail, detail.empty() ? "" : ")"));
}

}  // namespace

LockedVariables::~LockedVariables() { UnlockAll(); }

absl::Status LockedVariables::Lock(OpKernelContext* ctx,
                                   absl::Span<const Request> requests) {
  TF_RETURN_IF_ERROR(FindVariables(ctx, requests));
  TF_RETURN_IF_ERROR(CheckDistinct());
  LockAll();
  // The mode can only be changed under an exclusive lock, and DisableCopyOnRead
  // may end it again before the locks below are taken. Each turn of the loop
  // handles one such call.
  while (!CopyOnReadStarted()) {
    UnlockAll();
    TF_RETURN_IF_ERROR(StartCopyOnRead(ctx));
    LockAll();
  }
  absl::Status status = CheckTensors(ctx);
  if (!status.ok()) {
    UnlockAll();
  }
  return status;
}

absl::Status LockedVariables::PrepareToWrite(OpKernelContext* ctx, int i) {
  return IsRead(i) ? CopyBuffer(ctx, variables_[i].tensor) : absl::OkStatus();
}

absl::Status LockedVariables::PrepareToShare(OpKernelContext* ctx, int i) {
  if (IsRead(i) || !variables_[i].tensor->IsAligned()) {
    TF_RETURN_IF_ERROR(CopyBuffer(ctx, variables_[i].tensor));
  }
  variables_[i].resource->copy_on_read_mode.store(true);
  return absl::OkStatus();
}

bool LockedVariables::IsRead(int i) const {
  const Variable& variable = variables_[i];
  // A ref variable is updated while others read it, as TensorFlow's own ops do.
  return variable.resource != nullptr && !variable.tensor->RefCountIsOne();
}

void LockedVariables::Unlock(int i) {
  Variable& variable = variables_[i];
  if (!variable.locked) {
    return;
  }
  variable.locked = false;
  if (variable.request.access == Access::kExclusive) {
    variable.mu->unlock();
  } else {
    variable.mu->unlock_shared();
  }
}

absl::Status LockedVariables::FindVariables(
    OpKernelContext* ctx, absl::Span<const Request> requests) {
  variables_.resize(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Variable& variable = variables_[i];
    variable.request = requests[i];
    const int input = requests[i].input;
    if (ctx->input_dtype(input) == DT_RESOURCE) {
      TF_RETURN_IF_ERROR(CheckScalar(ctx->input(input), requests[i].name));
      const absl::Status status = tensorflow::LookupResource(
          ctx, tensorflow::HandleFromInput(ctx, input), &variable.resource);
      if (absl::IsNotFound(status)) {
        return NotInitialized(requests[i].name, status.message());
      }
      if (!status.ok()) {
        return absl::Status(status.code(), absl::StrCat(requests[i].name, ": ",
                                                        status.message()));
      }
      variable.mu = variable.resource->mu();
    } else {
      variable.mu = ctx->input_ref_mutex(input);
    }
    by_address_.push_back(&variable);
  }
  std::stable_sort(
      by_address_.begin(), by_address_.end(),
      [](const Variable* a, const Variable* b) { return a->mu < b->mu; });
  return absl::OkStatus();
}

absl::Status LockedVariables::CheckDistinct() const {
  for (size_t i = 1; i < by_address_.size(); ++i) {
    if (by_address_[i - 1]->mu == by_address_[i]->mu) {
      return absl::InvalidArgumentError(
          absl::StrCat(by_address_[i]->request.name, " and ",
                       by_address_[i - 1]->request.name,
                       " must be different variables, but are the same one"));
    }
  }
  return absl::OkStatus();
}

void LockedVariables::LockAll() {
  for (Variable* variable : by_address_) {
    if (variable->request.access == Access::kExclusive) {
      variable->mu->lock();
    } else {
      variable->mu->lock_shared();
    }
    variable->locked = true;
  }
}

void LockedVariables::UnlockAll() {
  for (size_t i = 0; i < variables_.size(); ++i) {
    Unlock(static_cast<int>(i));
  }
}

bool LockedVariables::CopyOnReadStarted() const {
  return std::all_of(variables_.begin(), variables_.end(),
                     [](const Variable& variable) {
                       return variable.request.access != Access::kShared ||
                              variable.resource == nullptr ||
                              variable.resource->copy_on_read_mode.load();
                     });
}

absl::Status LockedVariables::StartCopyOnRead(OpKernelContext* ctx) {
  for (Variable& variable : variables_) {
    if (variable.request.access != Access::kShared ||
        variable.resource == nullptr) {
      continue;
    }
    std::lock_guard<VariableMutex> lock(*variable.mu);
    Tensor* tensor = variable.resource->tensor();
    if (variable.resource->copy_on_read_mode.load()) {
      continue;
    }
    if (tensor->IsInitialized() && !tensor->RefCountIsOne()) {
      TF_RETURN_IF_ERROR(CopyBuffer(ctx, tensor));
    }
    variable.resource->copy_on_read_mode.store(true);
  }
  return absl::OkStatus();
}

absl::Status LockedVariables::CheckTensors(OpKernelContext* ctx) {
  for (Variable& variable : variables_) {
    const Request& request = variable.request;
    if (variable.resource != nullptr) {
      variable.tensor = variable.resource->tensor();
    } else {
      variable.ref_tensor =
          ctx->mutable_input(request.input, /*lock_held=*/true);
      variable.tensor = &variable.ref_tensor;
    }
    if (!variable.tensor->IsInitialized()) {
      return NotInitialized(request.name, "");
    }
    if (variable.tensor->dtype() != request.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat(request.name, " must be a variable of dtype ",
                       DataTypeString(request.dtype), ", but has dtype ",
                       DataTypeString(variable.tensor->dtype())));
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep
