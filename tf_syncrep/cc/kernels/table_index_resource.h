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

// Of several tables, which are stacked: each has a range of the rows of the
// variables that are the part. The variables say what is in the tables, and the
// index is made of them: it knows the buffers that it was made of, and where
// the variables have others, as after a restore, it is made anew. To use it is
// to hold the locks of both, shared.
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

  // Of all tables.
  int64_t num_rows() const { return num_rows_; }

  // What is the last use of keys that are used now: the number of the first
  // update after the last maintenance.
  int32_t clock() const { return clock_; }
  void set_clock(int32_t clock) { clock_ = clock; }

  // Rows whose last use is before this say of when it was at the latest; others
  // have not been through a maintenance since.
  int32_t settled_before() const { return settled_before_; }
  void set_settled_before(int32_t clock) { settled_before_ = clock; }

  // Whether it was made of these, and how often it was made.
  bool IsBuiltFrom(const tensorflow::Tensor& keys,
                   const tensorflow::Tensor& uses) const;
  int64_t num_builds() const { return num_builds_; }

  // Makes it of the columns, whose locks are held exclusively. They are
  // aligned, and have num_rows() rows. Errors: InvalidArgument for columns of
  // no table, ResourceExhausted; then it is made of nothing.
  absl::Status Build(const tensorflow::Tensor& keys,
                     const tensorflow::Tensor& uses);

 private:
  const std::vector<TableOptions> options_;
  std::vector<std::unique_ptr<DynamicTable>> tables_;
  std::vector<InitialValues> initial_values_;
  int64_t num_rows_ = 0;
  std::atomic<int32_t> clock_{0};
  std::atomic<int32_t> settled_before_{0};
  // They keep the buffers, so that no others have the same addresses. Changed
  // under the variables' exclusive locks.
  tensorflow::Tensor keys_;
  tensorflow::Tensor uses_;
  std::atomic<int64_t> num_builds_{0};
};

// The resource of an op's input "index", which is its first.
absl::Status LookupTableIndex(
    tensorflow::OpKernelContext* ctx,
    tensorflow::core::RefCountPtr<TableIndexResource>* index);

// InvalidArgument for a number, of at least 0, that no table of it has.
absl::Status CheckTable(const TableIndexResource& index, int64_t table);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_TABLE_INDEX_RESOURCE_H_
