// Ops that make resources which live as long as somebody has their handle.

#ifndef TF_SYNCREP_CC_KERNELS_COUNTED_RESOURCE_OP_H_
#define TF_SYNCREP_CC_KERNELS_COUNTED_RESOURCE_OP_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/random.h"

namespace tf_syncrep {

// With its attribute "counted" false this is TensorFlow's ResourceOpKernel: a
// resource with a shared name lives as long as its task.
//
// With "counted" the handle holds a reference. More precisely, the handle's
// tensor on this task holds it, and something elsewhere keeps that tensor
// alive: for example a client's result of an eager op that ran here, until the
// client releases the result or its context here is closed. A copy that was
// sent to another task holds no reference. It finds the resource by a name,
// under which the resource manager knows the resource without owning it.
template <typename T>
class CountedResourceOp : public tensorflow::ResourceOpKernel<T> {
 public:
  explicit CountedResourceOp(tensorflow::OpKernelConstruction* ctx)
      : tensorflow::ResourceOpKernel<T>(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("counted", &is_counted_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("container", &container_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared_name", &shared_name_));
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    if (!is_counted_) {
      tensorflow::ResourceOpKernel<T>::Compute(ctx);
      return;
    }
    tensorflow::ResourceMgr* const manager = ctx->resource_manager();
    const std::string container =
        container_.empty() ? manager->default_container() : container_;
    const std::string name =
        shared_name_.empty()
            ? absl::StrCat("counted/", absl::Hex(tensorflow::random::New64()))
            : shared_name_;
    tensorflow::core::RefCountPtr<T> resource;
    OP_REQUIRES_OK(ctx, FindOrMake(manager, container, name, &resource));
    tensorflow::Tensor* output;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, tensorflow::TensorShape({}), &output));
    // The handle takes over the reference.
    tensorflow::ResourceHandle handle =
        tensorflow::ResourceHandle::MakeRefCountingHandle(
            resource.release(), ctx->device()->name());
    handle.set_container(container);
    handle.set_name(name);
    output->scalar<tensorflow::ResourceHandle>()() = handle;
  }

 protected:
  // Empty if nobody else can find the resource.
  const std::string& shared_name() const { return shared_name_; }

  // For VerifyResource(): returns InvalidArgument unless the options of the one
  // that exists and of this op have the same description. `what` names it.
  absl::Status CheckSame(absl::string_view what, const std::string& existing,
                         const std::string& received) const {
    if (existing == received) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("The ", what, " ", shared_name_, " exists with ", existing,
                     ". Received: ", received));
  }

 private:
  // Unlike ResourceMgr::LookupOrCreate, this makes resources that the manager
  // does not own.
  absl::Status FindOrMake(tensorflow::ResourceMgr* manager,
                          const std::string& container, const std::string& name,
                          tensorflow::core::RefCountPtr<T>* resource) {
    while (true) {
      T* found = nullptr;
      absl::Status status = manager->Lookup<T>(container, name, &found);
      if (status.ok()) {
        resource->reset(found);
        return VerifyResource(found);
      }
      if (!absl::IsNotFound(status)) {
        return status;
      }
      TF_RETURN_IF_ERROR(CreateResource(&found));
      resource->reset(found);
      status = manager->CreateUnowned<T>(container, name, found);
      // Another op was faster, or a resource of this name is just being
      // destroyed and the name will be free in a moment.
      if (!absl::IsAlreadyExists(status)) {
        return status;
      }
    }
  }

  absl::Status CreateResource(T** resource) override = 0;
  absl::Status VerifyResource(T* resource) override = 0;

  bool is_counted_;
  std::string container_;
  std::string shared_name_;
};

// To be called by CreateResource(), if the resource needs a thread: if it got
// none, destroys the resource and returns ResourceExhausted. `what` names it.
template <typename T>
absl::Status TakeIfItHasThread(T* made, absl::string_view what, T** resource) {
  if (!made->has_thread()) {
    made->Unref();
    return absl::ResourceExhaustedError(
        absl::StrCat("There is no thread for the leases of a ", what));
  }
  *resource = made;
  return absl::OkStatus();
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_COUNTED_RESOURCE_OP_H_
