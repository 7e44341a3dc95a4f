#include "tf_syncrep/cc/lib/rows/row_snapshot.h"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"

namespace tf_syncrep {
namespace {

// The rows of a range, whose copies are freed together.
constexpr int64_t kRangeRows = 4096;

// The first block of a range has room for kFewestBlockRows rows, and each
// further one for twice as many as the one before, up to a number of rows and
// bytes.
constexpr int64_t kFewestBlockRows = 2;
constexpr int64_t kMostBlockRows = 256;
constexpr int64_t kMostBlockBytes = 64 << 10;

// The overhead of an allocation.
constexpr int64_t kAllocationBytes = 16;

// How many bytes one call keeps at most, since its caller has locks.
constexpr int64_t kKeepAtOnce = 4 << 20;

// When a row of a table that grows was used last, and how often it was: not at
// all if it is free.
struct Use {
  int32_t last;
  int32_t count;
};

// No lock is needed to read that a row is free: before it gets a key, it is
// kept.
Use ReadUse(const char* uses, int64_t row) {
  const uint64_t bits = ReadOnce(reinterpret_cast<const uint64_t*>(uses) + row);
  Use use;
  std::memcpy(&use, &bits, sizeof(use));
  return use;
}

}  // namespace

struct RowSnapshot::Block {
  std::unique_ptr<Block> older;
  int64_t num_rows;     // room for this many rows
  int64_t size = 0;     // rows in it
  Array<char> copies;   // row after row, array after array
  Array<int32_t> rows;  // their numbers in the range
};

struct RowSnapshot::Range {
  std::unique_ptr<Block> newest;
  std::bitset<kRangeRows> is_kept;  // for each row
};

RowSnapshot::RowSnapshot(int64_t num_rows, std::vector<int64_t> row_bytes,
                         KeptBytes* kept)
    : num_rows_(num_rows),
      row_bytes_(std::move(row_bytes)),
      all_row_bytes_(
          std::accumulate(row_bytes_.begin(), row_bytes_.end(), int64_t{0})),
      most_block_rows_(std::clamp<int64_t>(
          kMostBlockBytes / std::max<int64_t>(1, all_row_bytes_), 1,
          kMostBlockRows)),
      kept_bytes_(kept),
      kept_((num_rows + kRangeRows - 1) / kRangeRows) {}

RowSnapshot::~RowSnapshot() { Abandon(); }

int64_t RowSnapshot::BlockBytes(int64_t num_rows) const {
  return static_cast<int64_t>(sizeof(Block)) + 3 * kAllocationBytes +
         num_rows * (all_row_bytes_ + static_cast<int64_t>(sizeof(int32_t)));
}

template <typename Row>
int64_t RowSnapshot::Keep(const std::vector<const char*>& data, const Row* rows,
                          int64_t begin, int64_t end) {
  int64_t i = rows == nullptr ? std::max(begin, next_.load()) : begin;
  for (int64_t bytes = 0; i < end && bytes < kKeepAtOnce; ++i) {
    const int64_t row = rows == nullptr ? i : ReadOnce(&rows[i]);
    if (row < next_ || row >= num_rows_) {
      continue;
    }
    Kept kept = Kept::kYes;
    {
      const MutexLock lock(MutexOf(row / kRangeRows));
      if (row >= next_ && !IsKept(row)) {
        kept = KeepRow(data, row);
        bytes += all_row_bytes_;
      }
    }
    if (kept == Kept::kNoRoom) {
      break;
    }
    if (kept == Kept::kNoMemory) {
      kept_bytes_->GiveUp(KeptBytes::Reason::kOutOfMemory);
      Abandon();
    }
  }
  return std::max(i, begin);
}

template int64_t RowSnapshot::Keep(const std::vector<const char*>&,
                                   const int32_t*, int64_t, int64_t);
template int64_t RowSnapshot::Keep(const std::vector<const char*>&,
                                   const int64_t*, int64_t, int64_t);

bool RowSnapshot::IsKept(int64_t row) const {
  const std::unique_ptr<Range>& range = kept_[row / kRangeRows];
  return range != nullptr && range->is_kept[row % kRangeRows];
}

RowSnapshot::Kept RowSnapshot::KeepRow(const std::vector<const char*>& data,
                                       int64_t row) {
  std::unique_ptr<Range>& range = kept_[row / kRangeRows];
  if (range == nullptr) {
    range.reset(new (std::nothrow) Range);
  }
  if (range == nullptr) {
    return Kept::kNoMemory;
  }
  std::unique_ptr<Block>& newest = range->newest;
  if (newest == nullptr || newest->size == newest->num_rows) {
    const int64_t num_rows =
        std::min(newest == nullptr ? kFewestBlockRows : 2 * newest->num_rows,
                 most_block_rows_);
    if (!kept_bytes_->TryAdd(BlockBytes(num_rows))) {
      return Kept::kNoRoom;
    }
    std::unique_ptr<Block> block(new (std::nothrow) Block);
    if (block == nullptr || !block->rows.Allocate(num_rows) ||
        !block->copies.Allocate(num_rows * all_row_bytes_)) {
      kept_bytes_->Free(BlockBytes(num_rows));
      return Kept::kNoMemory;
    }
    block->num_rows = num_rows;
    block->older = std::move(newest);
    newest = std::move(block);
  }
  char* copy = newest->copies.data() + newest->size * all_row_bytes_;
  const MutexLock stripe(RowLocks::Global().Of(data[0], row));
  for (size_t k = 0; k < row_bytes_.size(); ++k) {
    std::memcpy(copy, data[k] + row * row_bytes_[k], row_bytes_[k]);
    copy += row_bytes_[k];
  }
  newest->rows[newest->size++] = static_cast<int32_t>(row % kRangeRows);
  range->is_kept[row % kRangeRows] = true;
  return Kept::kYes;
}

void RowSnapshot::CopyRow(const std::vector<const char*>& data, int64_t row,
                          int64_t uses, const std::vector<char*>& out,
                          int64_t to) const {
  if (uses >= 0) {
    const Use use = ReadUse(data[uses], row);
    if (use.count == 0) {
      std::memcpy(out[uses] + to * row_bytes_[uses], &use, sizeof(use));
      return;
    }
  }
  const MutexLock stripe(RowLocks::Global().Of(data[0], row));
  for (size_t k = 0; k < row_bytes_.size(); ++k) {
    std::memcpy(out[k] + to * row_bytes_[k], data[k] + row * row_bytes_[k],
                row_bytes_[k]);
  }
}

void RowSnapshot::CopyKept(int64_t begin, int64_t end,
                           const std::vector<char*>& out, int64_t to) const {
  const int64_t range = begin / kRangeRows;
  if (kept_[range] == nullptr) {
    return;
  }
  for (const Block* block = kept_[range]->newest.get(); block != nullptr;
       block = block->older.get()) {
    const char* copy = block->copies.data();
    for (int64_t i = 0; i < block->size; ++i) {
      const int64_t row = range * kRangeRows + block->rows[i];
      const bool wanted = row >= begin && row < end;
      for (size_t k = 0; k < row_bytes_.size(); ++k) {
        if (wanted) {
          std::memcpy(out[k] + (to + row - begin) * row_bytes_[k], copy,
                      row_bytes_[k]);
        }
        copy += row_bytes_[k];
      }
    }
  }
}

int64_t RowSnapshot::SkipFree(const std::vector<const char*>& data, int64_t num,
                              int64_t uses) {
  const int64_t begin = next_;
  const int64_t end = std::min(begin + num, num_rows_);
  int64_t row = begin;
  for (bool is_free = true; is_free && row < end;) {
    const int64_t first = row;
    const int64_t last = std::min(end, (row / kRangeRows + 1) * kRangeRows);
    const MutexLock lock(MutexOf(row / kRangeRows));
    while (row < last && ReadUse(data[uses], row).count == 0 && !IsKept(row)) {
      ++row;
    }
    Pass(first, row);
    is_free = row == last;
  }
  return row - begin;
}

void RowSnapshot::Read(const std::vector<const char*>& data, int64_t num,
                       int64_t uses, const std::vector<char*>& out) {
  const int64_t begin = next_;
  const int64_t end = std::min(begin + num, num_rows_);
  for (int64_t first = begin; first < end;) {
    const int64_t last = std::min(end, (first / kRangeRows + 1) * kRangeRows);
    const MutexLock lock(MutexOf(first / kRangeRows));
    for (int64_t row = first; row < last; ++row) {
      if (!IsKept(row)) {
        CopyRow(data, row, uses, out, row - begin);
      }
    }
    CopyKept(first, last, out, first - begin);
    Pass(first, last);
    first = last;
  }
}

void RowSnapshot::Pass(int64_t begin, int64_t end) {
  if (end > begin && (end % kRangeRows == 0 || end == num_rows_)) {
    FreeRange(begin / kRangeRows);
  }
  next_.compare_exchange_strong(begin, end);
  kept_bytes_->Progress();
}

void RowSnapshot::FreeRange(int64_t range) {
  if (kept_[range] == nullptr) {
    return;
  }
  int64_t freed = 0;
  std::unique_ptr<Block>& newest = kept_[range]->newest;
  while (newest != nullptr) {
    freed += BlockBytes(newest->num_rows);
    newest = std::move(newest->older);
  }
  kept_[range] = nullptr;
  if (freed > 0) {
    kept_bytes_->Free(freed);
  }
}

bool RowSnapshot::IsRead() const { return next_ >= num_rows_; }

void RowSnapshot::Abandon() {
  next_ = num_rows_;
  for (size_t range = 0; range < kept_.size(); ++range) {
    const MutexLock lock(MutexOf(static_cast<int64_t>(range)));
    FreeRange(static_cast<int64_t>(range));
  }
}

}  // namespace tf_syncrep
