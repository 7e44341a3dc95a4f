#include "tf_syncrep/cc/lib/rows/row_snapshot.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

namespace tf_syncrep {
namespace {

// Rows of a range, whose copies are freed together.
constexpr int64_t kRangeRows = 4096;

}  // namespace

RowSnapshot::RowSnapshot(int64_t num_rows, std::vector<int64_t> row_bytes,
                         KeptBytes* kept)
    : num_rows_(num_rows),
      row_bytes_(std::move(row_bytes)),
      all_row_bytes_(
          std::accumulate(row_bytes_.begin(), row_bytes_.end(), int64_t{0})),
      kept_bytes_(kept),
      is_kept_(num_rows) {}

RowSnapshot::~RowSnapshot() { Abandon(); }

void RowSnapshot::Keep(const std::vector<const char*>& data,
                       const int64_t* rows, int64_t num) {
  const std::lock_guard<std::mutex> lock(mu_);
  try {
    for (int64_t i = 0; i < num; ++i) {
      if (rows[i] >= next_ && rows[i] < num_rows_ && !is_kept_[rows[i]]) {
        KeepRow(data, rows[i]);
      }
    }
  } catch (const std::bad_alloc&) {
    kept_bytes_->GiveUp(KeptBytes::Reason::kOutOfMemory);
    AbandonLocked();
  }
}

int64_t RowSnapshot::KeepRange(const std::vector<const char*>& data,
                               int64_t begin, int64_t end, int64_t max_bytes) {
  const std::lock_guard<std::mutex> lock(mu_);
  int64_t row = std::max(begin, next_);
  try {
    for (int64_t bytes = 0; row < end && bytes < max_bytes; ++row) {
      if (!is_kept_[row]) {
        KeepRow(data, row);
        bytes += all_row_bytes_;
      }
    }
  } catch (const std::bad_alloc&) {
    kept_bytes_->GiveUp(KeptBytes::Reason::kOutOfMemory);
    AbandonLocked();
    return end;
  }
  return std::max(row, begin);
}

void RowSnapshot::KeepRow(const std::vector<const char*>& data, int64_t row) {
  Kept& kept = RangeOf(row);
  kept.rows.push_back(row);
  for (size_t i = 0; i < row_bytes_.size(); ++i) {
    kept.copies.append(data[i] + row * row_bytes_[i], row_bytes_[i]);
  }
  is_kept_[row] = true;
  kept_bytes_->Add(all_row_bytes_);
}

RowSnapshot::Kept& RowSnapshot::RangeOf(int64_t row) {
  const int64_t range = row / kRangeRows - first_range_;
  while (static_cast<int64_t>(kept_.size()) <= range) {
    kept_.emplace_back();
  }
  return kept_[range];
}

void RowSnapshot::Read(const std::vector<const char*>& data, int64_t num,
                       const std::vector<char*>& out) {
  const std::lock_guard<std::mutex> lock(mu_);
  const int64_t begin = next_;
  const int64_t end = std::min(begin + num, num_rows_);
  for (size_t i = 0; i < row_bytes_.size(); ++i) {
    std::memcpy(out[i], data[i] + begin * row_bytes_[i],
                (end - begin) * row_bytes_[i]);
  }
  int64_t freed = 0;
  for (int64_t range = first_range_; range * kRangeRows < end; ++range) {
    if (range - first_range_ >= static_cast<int64_t>(kept_.size())) {
      break;
    }
    const Kept& kept = kept_[range - first_range_];
    const char* copy = kept.copies.data();
    for (const int64_t row : kept.rows) {
      const bool wanted = row >= begin && row < end;
      for (size_t i = 0; i < row_bytes_.size(); ++i) {
        if (wanted) {
          std::memcpy(out[i] + (row - begin) * row_bytes_[i], copy,
                      row_bytes_[i]);
        }
        copy += row_bytes_[i];
      }
    }
  }
  next_ = end;
  // A range is freed when the last of its rows was read.
  while (!kept_.empty() &&
         std::min((first_range_ + 1) * kRangeRows, num_rows_) <= end) {
    freed += static_cast<int64_t>(kept_.front().copies.size());
    kept_.pop_front();
    ++first_range_;
  }
  if (kept_.empty()) {
    first_range_ = end / kRangeRows;
  }
  kept_bytes_->Free(freed);
  kept_bytes_->Progress();
}

bool RowSnapshot::IsRead() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return next_ >= num_rows_;
}

void RowSnapshot::Abandon() {
  const std::lock_guard<std::mutex> lock(mu_);
  AbandonLocked();
}

void RowSnapshot::AbandonLocked() {
  int64_t freed = 0;
  for (const Kept& kept : kept_) {
    freed += static_cast<int64_t>(kept.copies.size());
  }
  kept_.clear();
  next_ = num_rows_;
  kept_bytes_->Free(freed);
}

}  // namespace tf_syncrep
