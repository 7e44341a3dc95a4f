// RowSnapshot: the rows of a table as they were at one moment, read while
// others go on writing.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_SNAPSHOT_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tf_syncrep/cc/lib/kept_bytes.h"
#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// Of arrays with equally many rows, as a table and its slots are, which belong
// to somebody else. The snapshot is of the moment at which it is made. It is
// read once, from the first row to the last. Whoever is about to overwrite rows
// says so first, and those not read yet are copied aside: copy on write, row by
// row. A copy is freed as soon as the reader has passed it.
//
// Rows whose writers say nothing are read as they are at that time.
//
// Thread-safe. The caller holds the locks of the arrays, shared, for each call
// that gets their `data`. A row is copied under its stripe of RowLocks, which
// AdamAsync takes as well: so it is not torn by an update of single rows, whose
// lock is a shared one, too.
class RowSnapshot {
 public:
  // `row_bytes`: of each array. `kept` outlives this.
  RowSnapshot(int64_t num_rows, std::vector<int64_t> row_bytes,
              KeptBytes* kept);
  ~RowSnapshot();

  RowSnapshot(const RowSnapshot&) = delete;
  RowSnapshot& operator=(const RowSnapshot&) = delete;

  int64_t num_rows() const { return num_rows_; }
  const std::vector<int64_t>& row_bytes() const { return row_bytes_; }

  // Keeps those of rows[begin], ..., rows[end - 1], or of the rows from `begin`
  // to `end` if `rows` is null, that were not read yet; call it before they are
  // overwritten. Rows may repeat, and those that do not exist are left out.
  // `data[i]` is where array i begins. Returns the end of those that it got
  // through: it ends early, for the caller to let go of its locks and to wait
  // for room for most_bytes(), where there is none, and now and then. Where
  // there is no memory the snapshot is given up, and KeptBytes is told.
  int64_t Keep(const std::vector<const char*>& data, const int64_t* rows,
               int64_t begin, int64_t end);

  // What Keep() asks of KeptBytes at a time, at most.
  int64_t most_bytes() const { return BlockBytes(most_block_rows_); }

  // Copies the next `num` rows, as they were, to `out`, an array for each. Of a
  // table that grows array `uses` says which rows are in use: of others that
  // were not kept it alone is copied, and the rest, which may be memory that
  // nobody has touched yet, is not read. It is -1 for other tables.
  void Read(const std::vector<const char*>& data, int64_t num, int64_t uses,
            const std::vector<char*>& out);

  // Whether all rows were read; then there is nothing to keep.
  bool IsRead() const;

  // Gives the snapshot up: nothing is kept from here on.
  void Abandon();

 private:
  // Copies of rows that lie in one range of rows of a fixed size.
  struct Block;

  // All that a block takes.
  int64_t BlockBytes(int64_t num_rows) const;

  // False, and nothing has changed, if there is no room.
  bool KeepRow(const std::vector<const char*>& data, int64_t row)
      TF_SYNCREP_REQUIRES(mu_);
  void CopyRow(const std::vector<const char*>& data, int64_t row, int64_t uses,
               const std::vector<char*>& out, int64_t to) const;
  void FreeRange(int64_t range) TF_SYNCREP_REQUIRES(mu_);
  void AbandonLocked() TF_SYNCREP_REQUIRES(mu_);

  const int64_t num_rows_;
  const std::vector<int64_t> row_bytes_;
  const int64_t all_row_bytes_;
  const int64_t most_block_rows_;
  KeptBytes* const kept_bytes_;
  mutable Mutex mu_;
  // The first row that was not read yet.
  int64_t next_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  std::vector<bool> is_kept_ TF_SYNCREP_GUARDED_BY(mu_);
  // By range, the newest block.
  std::vector<std::unique_ptr<Block>> kept_ TF_SYNCREP_GUARDED_BY(mu_);
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_SNAPSHOT_H_
