#include "tf_syncrep/cc/lib/rows/row_groups.h"

#include <algorithm>
#include <limits>

#include "tf_syncrep/cc/lib/read_once.h"

namespace tf_syncrep {

template <typename Row>
template <typename Index>
RowGroups::Status RowGroups::Occurrences<Row>::Find(
    const Index* indices, int64_t num, int64_t num_rows, BadRows bad_rows,
    Sharder& sharder, BadRow* bad_row) {
  if (!memory.Allocate(num)) {
    return Status::kOutOfMemory;
  }
  size = 0;
  bool ascends = true;
  Row last = 0;
  for (int64_t i = 0; i < num; ++i) {
    const int64_t index = ReadOnce(&indices[i]);
    if (index < 0 || index >= num_rows) {
      if (bad_rows == BadRows::kRefused) {
        *bad_row = {i, index};
        return Status::kBadRow;
      }
      continue;
    }
    const Row row = static_cast<Row>(index);
    ascends &= row >= last;
    last = row;
    memory[size++] = {row, static_cast<Row>(i)};
  }
  sorted = memory.data();
  if (ascends) {
    return Status::kOk;
  }
  if (!spare.Allocate(size)) {
    return Status::kOutOfMemory;
  }
  sorted = SortByRow(memory.data(), spare.data(), size, sharder);
  return sorted == nullptr ? Status::kOutOfMemory : Status::kOk;
}

template <typename Index>
RowGroups::Status RowGroups::Find(const Index* indices, int64_t size,
                                  int64_t num_rows, BadRows bad_rows,
                                  Sharder& sharder, BadRow* bad_row) {
  is_narrow_ = std::max(size, num_rows) <= std::numeric_limits<uint32_t>::max();
  return is_narrow_
             ? narrow_.Find(indices, size, num_rows, bad_rows, sharder, bad_row)
             : wide_.Find(indices, size, num_rows, bad_rows, sharder, bad_row);
}

template RowGroups::Status RowGroups::Find(const int32_t*, int64_t, int64_t,
                                           BadRows, Sharder&, BadRow*);
template RowGroups::Status RowGroups::Find(const int64_t*, int64_t, int64_t,
                                           BadRows, Sharder&, BadRow*);

}  // namespace tf_syncrep
