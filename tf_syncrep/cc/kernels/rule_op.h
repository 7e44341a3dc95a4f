// What the kernels that update a variable by a rule share, on CPU and GPU: an
// op's attributes, its locks, and its checks.

#ifndef TF_SYNCREP_CC_KERNELS_RULE_OP_H_
#define TF_SYNCREP_CC_KERNELS_RULE_OP_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/rounding_op.h"
#include "tf_syncrep/cc/lib/rules/adam_async.h"
#include "tf_syncrep/cc/ops/rule_inputs.h"
#include "tf_syncrep/cc/tf/locked_variables.h"

namespace tf_syncrep {

struct RuleOp {
  absl::Status Find(tensorflow::OpKernelConstruction* ctx);

  // Locks var and slots with `access`, and powers and the count of rounding, if
  // there may be one, exclusively. Each has its input's place, but for the
  // count. Then checks the shapes of all but the count and the gradient, and
  // does not read the elements of any.
  absl::Status LockAndCheck(tensorflow::OpKernelContext* ctx,
                            LockedVariables::Access access,
                            LockedVariables* variables,
                            RoundingCount* count = nullptr) const;

  bool has_powers() const { return inputs.num_powers() > 0; }

  RuleInputs inputs;
  RoundingAttributes rounding;
  tensorflow::DataType dtype;
  tensorflow::DataType slot_dtype;
  bool use_locking = false;  // dense updates are exclusive in any case
  // These are AdamAsync's. All other rules count calls without rows.
  AdamAsyncFormula formula = AdamAsyncFormula::kAdam;
  float rmsprop_momentum = -1;
  bool validate_indices = true;
  bool count_empty = true;
};

// Makes the inputs from `begin` to `end` safe to overwrite; they are locked in
// their places, exclusively.
absl::Status PrepareToWrite(tensorflow::OpKernelContext* ctx, int begin,
                            int end, LockedVariables* variables);

// Returns var from those of the ops on ref variables that have an output.
void ForwardRefToOutput(tensorflow::OpKernelContext* ctx);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_RULE_OP_H_
