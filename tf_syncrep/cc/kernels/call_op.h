// Ops that are one call on the resource of their input "handle".

#ifndef TF_SYNCREP_CC_KERNELS_CALL_OP_H_
#define TF_SYNCREP_CC_KERNELS_CALL_OP_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

// Finds the resource of the op's input `name`.
template <typename Resource>
absl::Status LookupHandle(tensorflow::OpKernelContext* ctx,
                          tensorflow::core::RefCountPtr<Resource>* resource,
                          absl::string_view name = "handle") {
  const tensorflow::Tensor* handle;
  TF_RETURN_IF_ERROR(ctx->input(name, &handle));
  TF_RETURN_IF_ERROR(CheckScalar(*handle, name));
  return tensorflow::LookupResource(
      ctx, *Data<const tensorflow::ResourceHandle>(*handle), resource);
}

// `kCall` reads the other inputs, and sets the outputs. It must not wait.
template <typename Resource,
          absl::Status (*kCall)(tensorflow::OpKernelContext*, Resource&)>
class CallOp final : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<Resource> resource;
    OP_REQUIRES_OK(ctx, LookupHandle(ctx, &resource));
    OP_REQUIRES_OK(ctx, kCall(ctx, *resource));
  }
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_CALL_OP_H_
