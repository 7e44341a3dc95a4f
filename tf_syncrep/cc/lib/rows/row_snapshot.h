// RowSnapshot: the rows of a table as they were at one moment, read while
// others go on writing.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_SNAPSHOT_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_SNAPSHOT_H_

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "tf_syncrep/cc/lib/kept_bytes.h"

namespace tf_syncrep {

// Of arrays with equally many rows, as a table and its slots are, which belong
// to somebody else. The snapshot is of the moment at which it is made. It is
// read once, from the first row to the last. Whoever is about to overwrite rows
// says so first, and those not read yet are copied aside: copy on write, row by
// row. A copy is freed as soon as the reader has passed it.
//
// Rows whose writers say nothing are read as they are at that time.
//
// Thread-safe. The caller holds the locks of the arrays for each call that gets
// their `data`: of Keep() such that nobody writes these rows, of Read() such
// that nobody writes at all.
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

  // Keeps those of `rows` that were not read yet; call it before they are
  // overwritten, and KeptBytes::WaitForRoom() before that. Rows may repeat, and
  // those that do not exist are left out. `data[i]` is where array i begins.
  // Where there is no memory the snapshot is given up, and KeptBytes is told.
  void Keep(const std::vector<const char*>& data, const int64_t* rows,
            int64_t num);

  // The same for rows [begin, end). Returns the end of those that it got
  // through: it ends early, for the caller to wait for room again, after
  // `max_bytes`.
  int64_t KeepRange(const std::vector<const char*>& data, int64_t begin,
                    int64_t end, int64_t max_bytes);

  // Copies the next `num` rows, as they were, to `out`, an array for each.
  void Read(const std::vector<const char*>& data, int64_t num,
            const std::vector<char*>& out);

  // Whether all rows were read; then there is nothing to keep.
  bool IsRead() const;

  // Gives the snapshot up: nothing is kept from here on.
  void Abandon();

 private:
  // Copies of rows that lie in one range of rows of a fixed size.
  struct Kept {
    std::vector<int64_t> rows;
    std::string copies;  // row after row, array after array
  };

  // These need mu_.
  void KeepRow(const std::vector<const char*>& data, int64_t row);
  void AbandonLocked();
  Kept& RangeOf(int64_t row);

  const int64_t num_rows_;
  const std::vector<int64_t> row_bytes_;
  const int64_t all_row_bytes_;
  KeptBytes* const kept_bytes_;
  mutable std::mutex mu_;  // guards all below
  int64_t next_ = 0;       // the first row that was not read yet
  std::vector<bool> is_kept_;
  std::deque<Kept> kept_;    // from the range that has `next_` in it on
  int64_t first_range_ = 0;  // the number of the first of these
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_SNAPSHOT_H_
