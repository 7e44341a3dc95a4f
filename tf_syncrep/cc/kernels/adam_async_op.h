// The checks that the CPU and the GPU kernels of the AdamAsync ops share.

#ifndef TF_SYNCREP_CC_KERNELS_ADAM_ASYNC_OP_H_
#define TF_SYNCREP_CC_KERNELS_ADAM_ASYNC_OP_H_

#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/rounding_op.h"
#include "tf_syncrep/cc/lib/adam_async_rule.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/ops/update_shapes.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

// Returns InvalidArgument unless the slots, locked in the order of the inputs,
// have the shapes that fit var's shape, and lr, beta1, beta2 and epsilon are
// scalars. Does not read the elements of any.
absl::Status CheckAdamAsyncShapes(tensorflow::OpKernelContext* ctx,
                                  const LockedVariables& variables);

// Also makes a ref variable the op's output.
void ForwardRefToOutput(tensorflow::OpKernelContext* ctx);

// `Kernel` is OpKernel or AsyncOpKernel.
template <typename T, typename Kernel>
class AdamAsyncOpBase : public Kernel {
 public:
  using LibT = LibType<T>;
  using Slot = SlotType<LibT>;
  using Access = LockedVariables::Access;

  explicit AdamAsyncOpBase(tensorflow::OpKernelConstruction* ctx)
      : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, CheckSlotType(*ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_nesterov", &use_nesterov_));
    OP_REQUIRES_OK(ctx, rounding_.Find(ctx));
  }

 protected:
  static constexpr tensorflow::DataType kDtype =
      tensorflow::DataTypeToEnum<T>::value;
  static constexpr tensorflow::DataType kSlotDtype =
      tensorflow::DataTypeToEnum<Slot>::value;

  static LockedVariables::Request Request(AdamAsyncInput input,
                                          tensorflow::DataType dtype,
                                          Access access) {
    return {input, kAdamAsyncInputNames[input], dtype, access};
  }

  static LibT* VarData(LockedVariables& variables) {
    return variables.data<LibT>(kVar);
  }

  static const LibT* GradData(tensorflow::OpKernelContext* ctx) {
    return Data<const LibT>(ctx->input(kGrad));
  }

  AdamAsyncFormula Formula() const {
    return use_nesterov_ ? AdamAsyncFormula::kNesterov
                         : AdamAsyncFormula::kAdam;
  }

  // Locks var, m and v with `access`, and the powers and the count of rounding,
  // if there may be one, exclusively; then checks all but the count and the
  // gradient.
  absl::Status LockAndCheck(tensorflow::OpKernelContext* ctx, Access access,
                            LockedVariables* variables,
                            RoundingCount* count = nullptr) const {
    std::vector<LockedVariables::Request> requests = {
        Request(kVar, kDtype, access), Request(kM, kSlotDtype, access),
        Request(kV, kSlotDtype, access),
        Request(kBeta1Power, kSlotDtype, Access::kExclusive),
        Request(kBeta2Power, kSlotDtype, Access::kExclusive)};
    if (count != nullptr) {
      count->Request(ctx, &requests);
    }
    TF_RETURN_IF_ERROR(variables->Lock(ctx, requests));
    return CheckAdamAsyncShapes(ctx, *variables);
  }

  bool use_locking_;
  bool use_nesterov_;
  RoundingAttributes rounding_;
};

// The attributes and checks of the sparse ops.
template <typename T, typename Kernel>
class SparseAdamAsyncOpBase : public AdamAsyncOpBase<T, Kernel> {
 public:
  explicit SparseAdamAsyncOpBase(tensorflow::OpKernelConstruction* ctx)
      : AdamAsyncOpBase<T, Kernel>(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("apply_sparse_rmsprop", &use_rmsprop_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rmsprop_momentum", &rmsprop_momentum_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("validate_indices", &validate_indices_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("count_empty", &count_empty_));
  }

 protected:
  bool use_rmsprop_;
  float rmsprop_momentum_;
  bool validate_indices_;
  bool count_empty_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_ADAM_ASYNC_OP_H_
