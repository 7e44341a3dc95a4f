// A snapshot of a table in variables, which is found by ops that update the
// table.

#ifndef TF_SYNCREP_CC_TF_TABLE_SNAPSHOT_H_
#define TF_SYNCREP_CC_TF_TABLE_SNAPSHOT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf_syncrep/cc/lib/kept_bytes.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/rows/row_snapshot.h"
#include "tf_syncrep/cc/tf/compat.h"
#include "tf_syncrep/cc/tf/held_variable.h"

namespace tf_syncrep {

// The snapshot of a table and its slots, which are variables with equally many
// rows.
class TableSnapshot {
 public:
  // Errors: InvalidArgument if variables are not initialized, have elements
  // that cannot be copied byte by byte, or have different numbers of rows.
  static absl::StatusOr<std::shared_ptr<TableSnapshot>> Make(
      std::vector<HeldVariable> arrays, std::shared_ptr<KeptBytes> kept);

  ~TableSnapshot();

  TableSnapshot(const TableSnapshot&) = delete;
  TableSnapshot& operator=(const TableSnapshot&) = delete;

  // Returns the snapshots that were not read to their ends yet of the table
  // whose first array has this lock. There is one for each checkpoint that is
  // being written. Any thread may call this, and without snapshots it takes
  // next to no time.
  static std::vector<std::shared_ptr<TableSnapshot>> Find(const void* lock_of);

  // Makes Find() return this snapshot from now on.
  static void Register(const std::shared_ptr<TableSnapshot>& snapshot);

  // Keeps rows that are about to be overwritten: those in `rows`, or all if
  // that is null. Waits while too much is kept, and ends early once `cancelled`
  // returns true.
  template <typename Row>
  absl::Status Keep(const Row* rows, int64_t num,
                    const std::function<bool()>& cancelled);

  // These two do what those of RowSnapshot do: the first one adds to `skipped`,
  // and `out` of the second one has a pointer for each array. Errors: Cancelled
  // if the snapshot was abandoned.
  absl::Status SkipFree(int64_t num, int64_t uses, int64_t* skipped);
  absl::Status Read(int64_t num, int64_t uses, const std::vector<char*>& out);

  // Ends the snapshot: nothing is kept from now on, and once this returns the
  // reader does not touch the variables any more.
  void Abandon();

  int64_t num_rows() const { return rows_->num_rows(); }
  int64_t all_row_bytes() const { return all_row_bytes_; }
  size_t num_arrays() const { return arrays_.size(); }
  tensorflow::DataType dtype(int i) const { return dtypes_[i]; }
  const tensorflow::TensorShape& row_shape(int i) const {
    return row_shapes_[i];
  }

 private:
  class Locks;

  explicit TableSnapshot(std::vector<HeldVariable> arrays)
      : arrays_(std::move(arrays)) {}

  // Returns where the arrays begin. The caller holds their locks.
  absl::StatusOr<std::vector<const char*>> Data();
  // Calls `visit` with that, under the locks.
  template <typename Visit>
  absl::Status VisitData(const Visit& visit);

  std::vector<HeldVariable> arrays_;
  std::vector<VariableMutex*> mutexes_;  // sorted by address
  std::vector<tensorflow::DataType> dtypes_;
  std::vector<tensorflow::TensorShape> row_shapes_;
  int64_t all_row_bytes_ = 0;
  std::shared_ptr<KeptBytes> kept_;
  std::unique_ptr<RowSnapshot> rows_;
  // It is held while rows are read. It is taken before the arrays' locks, and
  // never by an update.
  Mutex reading_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_TABLE_SNAPSHOT_H_
