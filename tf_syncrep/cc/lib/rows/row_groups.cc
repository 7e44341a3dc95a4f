#include "tf_syncrep/cc/lib/rows/row_groups.h"

#include "tf_syncrep/cc/lib/read_once.h"

namespace tf_syncrep {

template <typename Index>
RowGroups::Status RowGroups::Find(const Index* indices, int64_t size,
                                  int64_t num_rows, BadRows bad_rows,
                                  Sharder& sharder, BadRow* bad_row) {
  if (!memory_.Allocate(size)) {
    return Status::kOutOfMemory;
  }
  size_ = 0;
  bool ascends = true;
  uint32_t last = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t index = ReadOnce(&indices[i]);
    if (index < 0 || index >= num_rows) {
      if (bad_rows == BadRows::kRefused) {
        *bad_row = {i, index};
        return Status::kBadRow;
      }
      continue;
    }
    const auto row = static_cast<uint32_t>(index);
    ascends &= row >= last;
    last = row;
    memory_[size_++] = {row, static_cast<uint32_t>(i)};
  }
  sorted_ = memory_.data();
  if (ascends) {
    return Status::kOk;
  }
  if (!spare_.Allocate(size_)) {
    return Status::kOutOfMemory;
  }
  sorted_ = SortByRow(memory_.data(), spare_.data(), size_, sharder);
  return sorted_ == nullptr ? Status::kOutOfMemory : Status::kOk;
}

template RowGroups::Status RowGroups::Find(const int32_t*, int64_t, int64_t,
                                           BadRows, Sharder&, BadRow*);
template RowGroups::Status RowGroups::Find(const int64_t*, int64_t, int64_t,
                                           BadRows, Sharder&, BadRow*);

}  // namespace tf_syncrep
