// A snapshot of a table in variables, found by those who update the table.

#ifndef TF_SYNCREP_CC_KERNELS_TABLE_SNAPSHOT_H_
#define TF_SYNCREP_CC_KERNELS_TABLE_SNAPSHOT_H_

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

// Of a table and its slots: variables with equally many rows.
class TableSnapshot {
 public:
  // Errors: InvalidArgument for variables that are not initialized, have
  // elements that cannot be copied byte by byte, or different numbers of rows.
  static absl::StatusOr<std::shared_ptr<TableSnapshot>> Make(
      std::vector<HeldVariable> arrays, std::shared_ptr<KeptBytes> kept);

  ~TableSnapshot();

  TableSnapshot(const TableSnapshot&) = delete;
  TableSnapshot& operator=(const TableSnapshot&) = delete;

  // The snapshots, not read to their ends yet, of the table whose first array
  // has this lock: one for each checkpoint that is being written. From any
  // thread; takes next to no time where none is.
  static std::vector<std::shared_ptr<TableSnapshot>> Find(const void* lock_of);

  // From here on it is found.
  static void Register(const std::shared_ptr<TableSnapshot>& snapshot);

  // Keeps rows that are about to be overwritten: those in `rows`, or all if it
  // is null. Waits where too much is kept; ends early once `cancelled`.
  absl::Status Keep(const int64_t* rows, int64_t num,
                    const std::function<bool()>& cancelled);

  // Copies the next `num` rows to `out`, a pointer for each array; see
  // RowSnapshot for `uses`. Errors: Cancelled where it was abandoned.
  absl::Status Read(int64_t num, int64_t uses, const std::vector<char*>& out);

  // Nothing is kept from here on, and when it returns the reader touches no
  // variable any more.
  void Abandon();

  int64_t num_rows() const { return rows_->num_rows(); }
  int64_t all_row_bytes() const { return all_row_bytes_; }
  size_t num_arrays() const { return arrays_.size(); }
  tensorflow::DataType dtype(int i) const { return dtypes_[i]; }
  // Of a row of array i.
  const tensorflow::TensorShape& row_shape(int i) const {
    return row_shapes_[i];
  }

 private:
  class Locks;

  explicit TableSnapshot(std::vector<HeldVariable> arrays)
      : arrays_(std::move(arrays)) {}

  // Where the arrays begin; hold their locks.
  absl::StatusOr<std::vector<const char*>> Data();

  std::vector<HeldVariable> arrays_;
  std::vector<VariableMutex*> mutexes_;  // of the arrays, by address
  std::vector<tensorflow::DataType> dtypes_;
  std::vector<tensorflow::TensorShape> row_shapes_;
  int64_t all_row_bytes_ = 0;
  std::shared_ptr<KeptBytes> kept_;
  std::unique_ptr<RowSnapshot> rows_;
  // Held while rows are read; before the arrays' locks, and never by an update.
  Mutex reading_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_TABLE_SNAPSHOT_H_
