// Variables of either kind, held for longer than an op runs.

#ifndef TF_SYNCREP_CC_TF_HELD_VARIABLE_H_
#define TF_SYNCREP_CC_TF_HELD_VARIABLE_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/tf/compat.h"

namespace tf_syncrep {

using VariableRef = tensorflow::core::RefCountPtr<tensorflow::Var>;

// Keeps a resource variable alive. Of a reference variable it keeps only the
// present buffer: it does not notice an assignment that gives the variable
// another one. The lock lives as long as TensorFlow has the variable, which is
// as long as a step runs that uses it: only such a step may take the lock.
class HeldVariable {
 public:
  explicit HeldVariable(VariableRef resource)
      : resource_(std::move(resource)), mu_(resource_->mu()) {}
  // For an op's input that is a reference.
  HeldVariable(tensorflow::OpKernelContext* ctx, int input)
      : reference_(ctx->mutable_input(input, /*lock_held=*/false)),
        mu_(ctx->input_ref_mutex(input)) {}

  VariableMutex* mu() const { return mu_; }

  // The caller must hold the lock.
  tensorflow::Tensor* tensor() {
    return resource_ != nullptr ? resource_->tensor() : &reference_;
  }

  // Whether the variable is written while others read its buffer, as
  // TensorFlow's own ops do with reference variables.
  bool is_written_in_place() const { return resource_ == nullptr; }

  std::string DebugString() const {
    return resource_ != nullptr
               ? resource_->DebugString()
               : absl::StrCat(tensorflow::DataTypeString(reference_.dtype()),
                              reference_.shape().DebugString());
  }

 private:
  VariableRef resource_;
  tensorflow::Tensor reference_;
  VariableMutex* mu_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_HELD_VARIABLE_H_
