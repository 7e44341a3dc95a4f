// RowSnapshot: the rows of a table as they were at one moment, which are read
// while others go on writing.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_SNAPSHOT_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_SNAPSHOT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "tf_syncrep/cc/lib/kept_bytes.h"
#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// A snapshot of arrays with equally many rows, as a table and its slots are,
// which belong to somebody else. It shows the moment at which it is made. It is
// read once, from the first row to the last. Writers announce the rows that
// they are about to overwrite, and those that were not read yet are copied
// aside: copy on write, row by row. Copies are freed when the reader has passed
// them.
//
// Rows whose writers announce nothing are read with their values at that time.
//
// Thread-safe; writers that keep rows of different ranges do not wait for each
// other, nor for the reader of another one. For each call that gets their
// `data`, the caller holds the locks of the arrays, shared. A row is copied
// under its stripe of RowLocks. AdamAsync takes that as well, so that an update
// of single rows, which also holds only a shared lock, does not tear the copy.
class RowSnapshot {
 public:
  // `row_bytes` has an entry for each array. `kept` must outlive the snapshot.
  RowSnapshot(int64_t num_rows, std::vector<int64_t> row_bytes,
              KeptBytes* kept);
  ~RowSnapshot();

  RowSnapshot(const RowSnapshot&) = delete;
  RowSnapshot& operator=(const RowSnapshot&) = delete;

  int64_t num_rows() const { return num_rows_; }
  const std::vector<int64_t>& row_bytes() const { return row_bytes_; }

  // Keeps the rows rows[begin], ..., rows[end - 1], or the rows from `begin` to
  // `end` if `rows` is null, as far as they were not read yet; call it before
  // they are overwritten. Rows may repeat, each is read once,
  // and rows that do not exist are skipped. `data[i]` is where array i begins.
  // Returns the end of the entries that are done. Stops before `end` if there
  // is no room, so that the caller can release its locks and wait for room for
  // most_bytes(), and sometimes even if there is room. When there is no memory
  // the snapshot is given up, and KeptBytes is told.
  template <typename Row>
  int64_t Keep(const std::vector<const char*>& data, const Row* rows,
               int64_t begin, int64_t end);

  // The most that Keep() asks of KeptBytes at a time.
  int64_t most_bytes() const { return BlockBytes(most_block_rows_); }

  // Passes free rows among the next `num`, as far as a row that is in use or
  // kept. Array number `uses` says which rows are in use. Returns how many it
  // has passed.
  int64_t SkipFree(const std::vector<const char*>& data, int64_t num,
                   int64_t uses);

  // Copies the next `num` rows, as they were, to `out`, which has one array for
  // each. If the snapshot is given up meanwhile, they may be newer. In a table
  // that grows, array number `uses` says which rows are in
  // use. If a row is neither in use nor kept, only this array is copied: the
  // other arrays may be memory that was never touched, and are not read.
  // `uses` is -1 for other tables.
  void Read(const std::vector<const char*>& data, int64_t num, int64_t uses,
            const std::vector<char*>& out);

  // Whether all rows were read, so that nothing must be kept any more.
  bool IsRead() const;

  // Gives the snapshot up: from here on nothing is kept.
  void Abandon();

 private:
  // Copies of rows that lie in one range, which is a fixed number of rows.
  struct Block;
  struct Range;

  int64_t BlockBytes(int64_t num_rows) const;

  // Ranges are locked by stripes, each with a cache line of its own. Whoever
  // holds one waits for no other; of other locks only for those of rows and of
  // KeptBytes.
  static constexpr int64_t kNumStripes = 64;
  struct alignas(64) Stripe {
    Mutex mu;
  };
  Mutex& MutexOf(int64_t range) { return stripes_[range % kNumStripes].mu; }

  // These need the mutex of the range, which is the row's for those of a row:
  enum class Kept { kYes, kNoRoom, kNoMemory };
  // Unless it returns kYes, nothing has changed.
  Kept KeepRow(const std::vector<const char*>& data, int64_t row);
  bool IsKept(int64_t row) const;
  void CopyRow(const std::vector<const char*>& data, int64_t row, int64_t uses,
               const std::vector<char*>& out, int64_t to) const;
  // Copies what is kept of the range from row `begin` to row `end`, `to` rows
  // behind the beginning of `out`.
  void CopyKept(int64_t begin, int64_t end, const std::vector<char*>& out,
                int64_t to) const;
  // Notes that the rows from `begin` to `end`, of one range, were read, and
  // frees the range's copies if they are its last ones.
  void Pass(int64_t begin, int64_t end);
  void FreeRange(int64_t range);

  const int64_t num_rows_;
  const std::vector<int64_t> row_bytes_;
  const int64_t all_row_bytes_;
  const int64_t most_block_rows_;
  KeptBytes* const kept_bytes_;
  std::array<Stripe, kNumStripes> stripes_;
  // The first row that was not read yet. The reader passes a row while it has
  // the mutex of its range, so for the rows of a range that one guards it. It
  // becomes num_rows_ at any time when the snapshot is given up, and stays so.
  std::atomic<int64_t> next_{0};
  // Null for ranges of which nothing is kept.
  std::vector<std::unique_ptr<Range>> kept_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_SNAPSHOT_H_
