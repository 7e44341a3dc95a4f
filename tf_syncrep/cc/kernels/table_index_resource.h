// The index of a part of tables that grow, as a resource of its task.

#ifndef TF_SYNCREP_CC_KERNELS_TABLE_INDEX_RESOURCE_H_
#define TF_SYNCREP_CC_KERNELS_TABLE_INDEX_RESOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/lib/table/dynamic_table.h"
#include "tf_syncrep/cc/lib/table/initial_values.h"

namespace tf_syncrep {

struct TableOptions {
  std::string name;
  DynamicTable::Options rows;
  InitialKind initial_kind;
  double initial_first;
  double initial_second;
  int64_t seed;
};

// The index of several tables, which are stacked: each has a range of the rows
// of the variables that make up the part. The variables have the contents of
// the tables, and the index is made from them. It remembers the buffers from
// which it was made; if the variables have other ones, for example after a
// restore, it is made anew. Whoever uses it holds the locks of both variables,
// shared.
class TableIndexResource final : public tensorflow::ResourceBase {
 public:
  explicit TableIndexResource(const std::vector<TableOptions>& options);

  std::string DebugString() const override;

  const std::vector<TableOptions>& options() const { return options_; }
  int64_t num_tables() const { return static_cast<int64_t>(tables_.size()); }
  DynamicTable& table(int64_t i) { return *tables_[i]; }
  const InitialValues& initial_values(int64_t i) const {
    return initial_values_[i];
  }

  // The number of rows of all tables together.
  int64_t num_rows() const { return num_rows_; }

  // The time of keys that are used now: the number of the first update after
  // the last maintenance.
  int32_t clock() const { return clock_; }
  void set_clock(int32_t clock) { clock_ = clock; }

  // If a row's last use is before this time, the row was used no later than
  // that use says. Other rows have not been through a maintenance since they
  // were used.
  int32_t settled_before() const { return settled_before_; }
  void set_settled_before(int32_t clock) { settled_before_ = clock; }

  // Sets the clock forward to the last use of a row that comes from elsewhere.
  // The row may not have been through a maintenance since that use.
  void SetForward(int32_t last_use);

  // Returns whether the index was made from these columns.
  bool IsBuiltFrom(const tensorflow::Tensor& keys,
                   const tensorflow::Tensor& uses) const;
  // Returns how often the index was made.
  int64_t num_builds() const { return num_builds_; }

  // Makes the index from the columns, which are aligned and have num_rows()
  // rows. The caller holds their locks exclusively. Errors: InvalidArgument for
  // columns that no table can have, and ResourceExhausted; the index is empty
  // then.
  absl::Status Build(const tensorflow::Tensor& keys,
                     const tensorflow::Tensor& uses);

 private:
  const std::vector<TableOptions> options_;
  std::vector<std::unique_ptr<DynamicTable>> tables_;
  std::vector<InitialValues> initial_values_;
  int64_t num_rows_ = 0;
  std::atomic<int32_t> clock_{0};
  std::atomic<int32_t> settled_before_{0};
  // These keep the buffers, so that no others have the same addresses. They are
  // changed under the variables' exclusive locks.
  tensorflow::Tensor keys_;
  tensorflow::Tensor uses_;
  std::atomic<int64_t> num_builds_{0};
};

// Finds the resource of an op's input "index", which is its first input.
absl::Status LookupTableIndex(
    tensorflow::OpKernelContext* ctx,
    tensorflow::core::RefCountPtr<TableIndexResource>* index);

// Returns InvalidArgument if no table of the index has this number, which is at
// least 0.
absl::Status CheckTable(const TableIndexResource& index, int64_t table);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_TABLE_INDEX_RESOURCE_H_
