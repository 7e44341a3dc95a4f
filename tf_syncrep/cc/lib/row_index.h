// Numbers the different rows of sparse gradients.

#ifndef TF_SYNCREP_CC_LIB_ROW_INDEX_H_
#define TF_SYNCREP_CC_LIB_ROW_INDEX_H_

#include <cstdint>
#include <vector>

namespace tf_syncrep {

// Gives each row that it is shown a number: 0 to the first, 1 to the next
// different one, and so on. A hash table with open addressing; not thread-safe.
class RowIndex {
 public:
  static constexpr int64_t kMaxRows = INT32_MAX;

  // The rows by their numbers.
  const std::vector<int64_t>& rows() const { return rows_; }
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }

  // Sets numbers[i] to the number of rows[i], for all i < num_rows. Returns
  // false, and has changed nothing but `numbers`, when kMaxRows are too few.
  bool Insert(const int64_t* rows, int64_t num_rows, int32_t* numbers);

  // Forgets the rows whose numbers are not below `size`.
  void Truncate(int64_t size);

  // Forgets all, and keeps its memory.
  void Clear();

 private:
  // `number` is one more than the row's; 0 is an empty bucket. `tag`, bits of
  // the hash that do not choose the bucket, saves most looks at other rows.
  struct Bucket {
    uint32_t tag;
    uint32_t number;
  };

  // Twice as many buckets.
  void Grow();

  std::vector<int64_t> rows_;
  // A power of two, more than half of them empty. In the order of their numbers
  // rows went into the first empty bucket from that of their hash on, so that
  // the last ones can be taken out again without a trace.
  std::vector<Bucket> buckets_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROW_INDEX_H_
