// A part of tables that grow, for an op: its variables, locked, and its index.

#ifndef TF_SYNCREP_CC_KERNELS_TABLE_PART_H_
#define TF_SYNCREP_CC_KERNELS_TABLE_PART_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/kernels/table_index_resource.h"
#include "tf_syncrep/cc/lib/table/table_columns.h"
#include "tf_syncrep/cc/tf/locked_variables.h"

namespace tf_syncrep {

// The variables of a part that an op gets as inputs. All have equally many
// rows.
class TablePart {
 public:
  // `keys` and `uses` are the numbers of the op's inputs.
  TablePart(TableIndexResource* index, int keys, int uses);

  // Adds another variable, by the number of the op's input, its name and its
  // dtype. Returns its place among those that were added.
  int Add(int input, std::string name, tensorflow::DataType dtype);

  // Locks all variables, shared, and makes the index if it was not made of
  // what they are. Errors: those of LockedVariables and of the index; and
  // InvalidArgument for shapes that do not belong to the index.
  absl::Status Lock(tensorflow::OpKernelContext* ctx);

  // Unlocks them. Others may change everything, then.
  void Unlock() { variables_.reset(); }

  // Unlocks the variables, keeps rows that are about to change for those who
  // write checkpoints of them, and locks the variables again. Variable `of`, of
  // those that were added, is the part's vectors. `is_same` becomes whether the
  // index is the same as before: otherwise rows have other keys now.
  absl::Status Keep(tensorflow::OpKernelContext* ctx, int of,
                    const int32_t* rows, int64_t size, bool* is_same);

  // While they are locked:
  TableColumns columns() const;
  const tensorflow::Tensor& tensor(int added) const {
    return variables_->tensor(kColumns + added);
  }
  template <typename T>
  T* data(int added) {
    return variables_->data<T>(kColumns + added);
  }

 private:
  static constexpr int kColumns = 2;

  absl::Status CheckShapes(const LockedVariables& variables, int num) const;

  TableIndexResource* const index_;
  std::vector<std::string> names_;
  std::vector<LockedVariables::Request> requests_;
  std::optional<LockedVariables> variables_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_TABLE_PART_H_
