// What the kernels that update a variable by a rule share, on CPU and GPU: an
// op's attributes, its locks, and its checks.

#ifndef TF_SYNCREP_CC_KERNELS_RULE_OP_H_
#define TF_SYNCREP_CC_KERNELS_RULE_OP_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"
#include "tf_syncrep/cc/lib/rules/adam_async.h"
#include "tf_syncrep/cc/lib/rules/stochastic_rounding.h"
#include "tf_syncrep/cc/ops/rule_inputs.h"
#include "tf_syncrep/cc/tf/locked_variables.h"

namespace tf_syncrep {

struct RuleOp {
  absl::Status Find(tensorflow::OpKernelConstruction* ctx);

  // Locks var and slots with `access`, and powers and the count of rounding
  // exclusively. Each has its input's place, but for the count. Then checks the
  // shapes of all but the count and the gradient, and does not read the
  // elements of any.
  absl::Status LockAndCheck(tensorflow::OpKernelContext* ctx,
                            LockedVariables::Access access,
                            LockedVariables* variables) const;

  // Checks the count of rounding, if there is one, which is locked, and makes
  // it safe to write.
  absl::Status PrepareCount(tensorflow::OpKernelContext* ctx,
                            LockedVariables& variables) const;
  // Counts an update, and returns its random numbers, if there is a count.
  // Cannot fail.
  std::optional<RoundingDraws> Count(LockedVariables& variables) const;

  bool has_powers() const { return inputs.num_powers() > 0; }
  // The place of the count among the locked variables.
  int count() const { return inputs.number(0); }

  RuleInputs inputs;
  tensorflow::DataType dtype;
  tensorflow::DataType slot_dtype;
  bool use_locking = false;  // dense updates are exclusive in any case
  bool has_count = false;    // and these attributes
  int64_t rounding_seed = 0;
  int64_t first_row = 0;
  int64_t row_stride = 1;
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

// Returns InvalidArgument unless the input `name`, of this shape, has var's
// shape.
absl::Status CheckSameShapeAsVar(absl::string_view name,
                                 const tensorflow::TensorShape& shape,
                                 const tensorflow::TensorShape& var_shape);

// Returns InvalidArgument unless the shapes of var and of a sparse gradient
// fit. Does not read the indices.
absl::Status CheckSparseShapes(const tensorflow::Tensor& grad,
                               const tensorflow::Tensor& indices,
                               const tensorflow::TensorShape& var_shape);

// Returns the error for indices[position] = index, which is not a row of var.
absl::Status IndexOutOfRange(int64_t position, int64_t index, int64_t num_rows);

// Copies the indices, sorted, into `rows` and checks the copies: inputs may be
// ref variables, which others can change after the check.
absl::Status GroupRows(tensorflow::OpKernelContext* ctx,
                       const tensorflow::Tensor& indices, int64_t num_rows,
                       RowGroups::BadRows bad_rows, RowGroups* rows);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_RULE_OP_H_
