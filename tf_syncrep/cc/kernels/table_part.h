// A part of tables that grow: its index, which is a resource of its task, and
// its locked variables, as an op sees them.

#ifndef TF_SYNCREP_CC_KERNELS_TABLE_PART_H_
#define TF_SYNCREP_CC_KERNELS_TABLE_PART_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/lib/sharder.h"
#include "tf_syncrep/cc/lib/table/table_columns.h"
#include "tf_syncrep/cc/lib/table/table_index.h"
#include "tf_syncrep/cc/tf/locked_variables.h"

namespace tf_syncrep {

// The index of several tables, whose columns are variables. It remembers the
// buffers from which it was made; if the variables have other ones, for example
// after a restore, it is made anew. Whoever uses it holds the locks of both
// variables, shared.
class TableIndexResource final : public tensorflow::ResourceBase,
                                 public TableIndex {
 public:
  using TableIndex::TableIndex;

  std::string DebugString() const override;

  bool IsBuiltFrom(const tensorflow::Tensor& keys,
                   const tensorflow::Tensor& uses) const;
  // Makes the index from the columns, which are aligned and have num_rows()
  // rows. The caller holds their locks exclusively. Errors: InvalidArgument for
  // columns that no table can have, and ResourceExhausted; the index is empty
  // then.
  absl::Status BuildFrom(const tensorflow::Tensor& keys,
                         const tensorflow::Tensor& uses, Sharder& sharder);
  // Holds the columns, from whose contents the index was made, or none.
  void HoldColumns(const tensorflow::Tensor& keys,
                   const tensorflow::Tensor& uses);

 private:
  // These keep the buffers, so that no others have the same addresses. They are
  // changed under the variables' exclusive locks.
  tensorflow::Tensor keys_;
  tensorflow::Tensor uses_;
};

// Returns InvalidArgument if no table of the index has this number, which is at
// least 0.
absl::Status CheckTable(const TableIndexResource& index, int64_t table);

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
  std::vector<LockedVariables::Request> requests_;
  std::optional<LockedVariables> variables_;
  int64_t num_locks_ = 0;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_TABLE_PART_H_
