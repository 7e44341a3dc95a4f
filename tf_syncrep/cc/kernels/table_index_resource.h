// The index of a part of tables that grow, as a resource of its task.

#ifndef TF_SYNCREP_CC_KERNELS_TABLE_INDEX_RESOURCE_H_
#define TF_SYNCREP_CC_KERNELS_TABLE_INDEX_RESOURCE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/lib/table/table_index.h"

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

  // Returns whether the index was made from these columns.
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

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_TABLE_INDEX_RESOURCE_H_
