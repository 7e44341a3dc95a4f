// CPU kernels of the AdamAsync ops: check, lock, call cc/lib/adam_async.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/lib/adam_async.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/scalar_input.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::DataTypeToEnum;
using tensorflow::DT_INT32;
using tensorflow::DT_RESOURCE;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
using Access = LockedVariables::Access;

absl::Status CheckSameShapeAsVar(AdamAsyncInput input, const TensorShape& shape,
                                 const TensorShape& var_shape) {
  if (shape != var_shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        kAdamAsyncInputNames[input], " must have the shape of var, ",
        var_shape.DebugString(), ", but has shape ", shape.DebugString()));
  }
  return absl::OkStatus();
}

LockedVariables::Request Request(AdamAsyncInput input, DataType dtype,
                                 Access access) {
  return {input, kAdamAsyncInputNames[input], dtype, access};
}

// What the dense and the sparse kernels share.
template <typename T>
class AdamAsyncOpBase : public OpKernel {
 public:
  using LibT = LibType<T>;
  using Slot = SlotType<LibT>;

  explicit AdamAsyncOpBase(OpKernelConstruction* ctx) : OpKernel(ctx) {
    DataType slot_dtype;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tslot", &slot_dtype));
    OP_REQUIRES(
        ctx, slot_dtype == DataTypeToEnum<Slot>::value,
        absl::InvalidArgumentError(absl::StrCat(
            "Tslot must be ", DataTypeString(DataTypeToEnum<Slot>::value),
            " for T = ", DataTypeString(DataTypeToEnum<T>::value), ", but is ",
            DataTypeString(slot_dtype))));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_nesterov", &use_nesterov_));
  }

 protected:
  static LibT* VarData(LockedVariables& variables) {
    return reinterpret_cast<LibT*>(variables.data<T>(kVar));
  }

  static const LibT* GradData(OpKernelContext* ctx) {
    return reinterpret_cast<const LibT*>(
        ctx->input(kGrad).template flat<T>().data());
  }

  static Slot Scalar(OpKernelContext* ctx, AdamAsyncInput input) {
    return ctx->input(input).template scalar<Slot>()();
  }

  // Locks var, m and v with `access` and the powers with `power_access`.
  absl::Status LockVariables(OpKernelContext* ctx, Access access,
                             Access power_access,
                             LockedVariables* variables) const {
    constexpr DataType kDtype = DataTypeToEnum<T>::value;
    constexpr DataType kSlotDtype = DataTypeToEnum<Slot>::value;
    return variables->Lock(
        ctx, {Request(kVar, kDtype, access), Request(kM, kSlotDtype, access),
              Request(kV, kSlotDtype, access),
              Request(kBeta1Power, kSlotDtype, power_access),
              Request(kBeta2Power, kSlotDtype, power_access)});
  }

  // Checks everything but the gradient.
  absl::Status CheckVariablesAndScalars(
      OpKernelContext* ctx, const LockedVariables& variables) const {
    for (const AdamAsyncInput scalar : {kLr, kBeta1, kBeta2, kEpsilon}) {
      TF_RETURN_IF_ERROR(CheckScalarInput(ctx, kAdamAsyncInputNames[scalar]));
    }
    for (const AdamAsyncInput slot : {kM, kV}) {
      TF_RETURN_IF_ERROR(CheckSameShapeAsVar(slot,
                                             variables.tensor(slot).shape(),
                                             variables.tensor(kVar).shape()));
    }
    for (const AdamAsyncInput power : {kBeta1Power, kBeta2Power}) {
      const TensorShape& shape = variables.tensor(power).shape();
      if (shape.num_elements() != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(kAdamAsyncInputNames[power],
                         " must have exactly one element, but has shape ",
                         shape.DebugString()));
      }
    }
    return absl::OkStatus();
  }

  // The Adam update for the powers as they are, which it then advances.
  absl::Status TakeStep(OpKernelContext* ctx, LockedVariables& variables,
                        AdamAsyncUpdate<Slot>* update) const {
    for (const AdamAsyncInput power : {kBeta1Power, kBeta2Power}) {
      TF_RETURN_IF_ERROR(variables.PrepareToWrite(ctx, power));
    }
    Slot& beta1_power = *variables.data<Slot>(kBeta1Power);
    Slot& beta2_power = *variables.data<Slot>(kBeta2Power);
    *update = {
        use_nesterov_ ? AdamAsyncFormula::kNesterov : AdamAsyncFormula::kAdam,
        AdamAsyncStepSize(Scalar(ctx, kLr), beta1_power, beta2_power),
        Scalar(ctx, kBeta1), Scalar(ctx, kBeta2), Scalar(ctx, kEpsilon)};
    beta1_power *= update->beta1;
    beta2_power *= update->beta2;
    return absl::OkStatus();
  }

  static void ForwardRefToOutput(OpKernelContext* ctx) {
    if (ctx->input_dtype(kVar) != DT_RESOURCE) {
      ctx->forward_ref_input_to_ref_output(kVar, 0);
    }
  }

  bool use_locking_;
  bool use_nesterov_;
};

template <typename T>
class ApplyAdamAsyncOp final : public AdamAsyncOpBase<T> {
 public:
  using Base = AdamAsyncOpBase<T>;
  using Base::Base;
  using typename Base::Slot;

  void Compute(OpKernelContext* ctx) override {
    {
      LockedVariables variables;
      OP_REQUIRES_OK(ctx, this->LockVariables(ctx, Access::kExclusive,
                                              Access::kExclusive, &variables));
      OP_REQUIRES_OK(ctx, this->CheckVariablesAndScalars(ctx, variables));
      OP_REQUIRES_OK(ctx, CheckSameShapeAsVar(kGrad, ctx->input(kGrad).shape(),
                                              variables.tensor(kVar).shape()));
      for (const AdamAsyncInput input : {kVar, kM, kV}) {
        OP_REQUIRES_OK(ctx, variables.PrepareToWrite(ctx, input));
      }
      AdamAsyncUpdate<Slot> update;
      OP_REQUIRES_OK(ctx, this->TakeStep(ctx, variables, &update));
      DeviceSharder sharder(ctx);
      ApplyAdamAsync(update, variables.tensor(kVar).NumElements(),
                     Base::GradData(ctx), Base::VarData(variables),
                     variables.data<Slot>(kM), variables.data<Slot>(kV),
                     sharder);
    }
    Base::ForwardRefToOutput(ctx);
  }
};

template <typename T>
class SparseApplyAdamAsyncOp final : public AdamAsyncOpBase<T> {
 public:
  using Base = AdamAsyncOpBase<T>;
  using typename Base::Slot;

  explicit SparseApplyAdamAsyncOp(OpKernelConstruction* ctx) : Base(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("apply_sparse_rmsprop", &use_rmsprop_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rmsprop_momentum", &rmsprop_momentum_));
  }

  void Compute(OpKernelContext* ctx) override {
    {
      const Access access =
          this->use_locking_ ? Access::kExclusive : Access::kShared;
      LockedVariables variables;
      OP_REQUIRES_OK(ctx, this->LockVariables(ctx, access, Access::kExclusive,
                                              &variables));
      OP_REQUIRES_OK(ctx, this->CheckVariablesAndScalars(ctx, variables));
      std::vector<int64_t> rows;
      OP_REQUIRES_OK(ctx,
                     CheckGradient(ctx, variables.tensor(kVar).shape(), &rows));
      if (!rows.empty()) {
        OP_REQUIRES_OK(ctx, Apply(ctx, access, rows, variables));
      }
    }
    Base::ForwardRefToOutput(ctx);
  }

 private:
  // Checks grad and indices, and copies the indices into `rows`: inputs may be
  // ref variables, which others can change after the check.
  static absl::Status CheckGradient(OpKernelContext* ctx,
                                    const TensorShape& var_shape,
                                    std::vector<int64_t>* rows) {
    if (var_shape.dims() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("var must have at least rank 1 for a sparse gradient, "
                       "but has shape ",
                       var_shape.DebugString()));
    }
    const Tensor& indices = ctx->input(kIndices);
    if (!TensorShapeUtils::IsVector(indices.shape())) {
      return absl::InvalidArgumentError(
          absl::StrCat("indices must be a vector, but has shape ",
                       indices.shape().DebugString()));
    }
    TensorShape expected = var_shape;
    expected.set_dim(0, indices.NumElements());
    const TensorShape& grad_shape = ctx->input(kGrad).shape();
    if (grad_shape != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("grad must have shape ", expected.DebugString(), " for ",
                       indices.NumElements(), " indices and a var of shape ",
                       var_shape.DebugString(), ", but has shape ",
                       grad_shape.DebugString()));
    }
    return indices.dtype() == DT_INT32
               ? CheckIndices<int32_t>(indices, var_shape.dim_size(0), rows)
               : CheckIndices<int64_t>(indices, var_shape.dim_size(0), rows);
  }

  template <typename Index>
  static absl::Status CheckIndices(const Tensor& indices, int64_t num_rows,
                                   std::vector<int64_t>* rows) {
    const auto flat = indices.flat<Index>();
    rows->assign(flat.data(), flat.data() + flat.size());
    for (size_t i = 0; i < rows->size(); ++i) {
      const int64_t row = (*rows)[i];
      if (row < 0 || row >= num_rows) {
        return absl::InvalidArgumentError(absl::StrCat(
            "indices[", i, "] = ", row, " is out of range: it must be in [0, ",
            num_rows, "), the rows of var"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Apply(OpKernelContext* ctx, Access access,
                     const std::vector<int64_t>& rows,
                     LockedVariables& variables) const {
    if (access == Access::kExclusive) {
      for (const AdamAsyncInput input : {kVar, kM, kV}) {
        TF_RETURN_IF_ERROR(variables.PrepareToWrite(ctx, input));
      }
    }
    AdamAsyncUpdate<Slot> update;
    if (use_rmsprop_) {
      const Slot beta1 = Base::Scalar(ctx, kBeta1);
      update = {AdamAsyncFormula::kRmsprop, Base::Scalar(ctx, kLr),
                rmsprop_momentum_ < 0 ? beta1 : Slot(rmsprop_momentum_),
                Base::Scalar(ctx, kBeta2), Base::Scalar(ctx, kEpsilon)};
    } else {
      TF_RETURN_IF_ERROR(this->TakeStep(ctx, variables, &update));
    }
    if (access == Access::kShared) {
      // The step is taken; holding the powers any longer would make updates
      // that may run side by side wait for each other.
      variables.Unlock(kBeta1Power);
      variables.Unlock(kBeta2Power);
    }
    const int64_t num_rows = static_cast<int64_t>(rows.size());
    DeviceSharder sharder(ctx);
    SparseApplyAdamAsync(
        update, num_rows, ctx->input(kGrad).NumElements() / num_rows,
        rows.data(), Base::GradData(ctx), Base::VarData(variables),
        variables.data<Slot>(kM), variables.data<Slot>(kV), sharder);
    return absl::OkStatus();
  }

  bool use_rmsprop_;
  float rmsprop_momentum_;
};

#define TF_SYNCREP_REGISTER(T)                                 \
  REGISTER_KERNEL_BUILDER(Name("ApplyAdamAsync")               \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("T"),         \
                          ApplyAdamAsyncOp<T>);                \
  REGISTER_KERNEL_BUILDER(Name("ResourceApplyAdamAsync")       \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("T"),         \
                          ApplyAdamAsyncOp<T>);                \
  REGISTER_KERNEL_BUILDER(Name("SparseApplyAdamAsync")         \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("T"),         \
                          SparseApplyAdamAsyncOp<T>);          \
  REGISTER_KERNEL_BUILDER(Name("ResourceSparseApplyAdamAsync") \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("T"),         \
                          SparseApplyAdamAsyncOp<T>)

TF_SYNCREP_REGISTER(Eigen::half);
TF_SYNCREP_REGISTER(Eigen::bfloat16);
TF_SYNCREP_REGISTER(float);
TF_SYNCREP_REGISTER(double);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
