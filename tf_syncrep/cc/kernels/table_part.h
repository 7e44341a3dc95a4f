// A part of tables that grow, as an op sees it: its locked variables and its
// index.

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

// The variables of a part that an op gets as inputs. All of them have equally
// many rows.
class TablePart {
 public:
  // `keys` and `uses` are the numbers of the op's inputs. The access is kShared
  // for an op that writes, and kRead for one that only reads.
  TablePart(TableIndexResource* index, int keys, int uses,
            LockedVariables::Access access);

  // Adds another variable, by the number of the op's input, its name and its
  // dtype. Returns its place among those that were added.
  int Add(int input, std::string name, tensorflow::DataType dtype);

  // Locks all variables, and makes the index if it was not made from their
  // present buffers. Errors: those of LockedVariables and of the index,
  // and InvalidArgument for shapes that do not fit the index.
  absl::Status Lock(tensorflow::OpKernelContext* ctx);

  // How often the variables have been locked. What is known of rows holds until
  // this changes.
  int64_t num_locks() const { return num_locks_; }

  // Unlocks the variables. Others may change everything from then on.
  void Unlock() { variables_.reset(); }

  // Unlocks the variables, keeps rows that are about to change for checkpoints
  // that are being written, and locks the variables again. The part's vectors
  // are the added variable number `of`. Sets `is_same` to whether the index is
  // still the same; if it is not, rows have other keys now.
  absl::Status Keep(tensorflow::OpKernelContext* ctx, int of,
                    const int32_t* rows, int64_t size, bool* is_same);

  // These need the locks:
  TableColumns columns() const;
  const tensorflow::Tensor& tensor(int added) const {
    return locked().tensor(kColumns + added);
  }
  template <typename T>
  T* data(int added) {
    return variables_->data<T>(  // NOLINT(bugprone-unchecked-optional-access)
        kColumns + added);
  }

 private:
  static constexpr int kColumns = 2;

  absl::Status CheckShapes(const LockedVariables& variables, int num) const;
  // The variables are there while they are locked.
  const LockedVariables& locked() const {
    return *variables_;  // NOLINT(bugprone-unchecked-optional-access)
  }

  // Whether the index is that of the columns, and the op may write to them.
  bool IsReady() const;

  TableIndexResource* const index_;
  const LockedVariables::Access access_;
  std::vector<std::string> names_;
  std::vector<LockedVariables::Request> requests_;
  std::optional<LockedVariables> variables_;
  int64_t num_locks_ = 0;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_TABLE_PART_H_
