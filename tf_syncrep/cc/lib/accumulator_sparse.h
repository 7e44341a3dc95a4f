// The sum of sparse gradients.

#ifndef TF_SYNCREP_CC_LIB_ACCUMULATOR_SPARSE_H_
#define TF_SYNCREP_CC_LIB_ACCUMULATOR_SPARSE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/chunk_pool.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/row_sketch.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// Where the rows of a sum are written.
template <typename T>
struct SparseResult {
  int64_t* rows = nullptr;
  T* values = nullptr;
};

// Adds gradients of type T up, row by row, in SlotType<T>.
//
// Adding copies the gradient, which takes as long as it has rows, however many
// were added before; the work is done at the end, in time linear in all that
// was added: sort the rows, then sum each one's occurrences in their order.
// When many more rows are held than there are different ones, they are merged
// in between, so that memory stays within a multiple of what the result takes.
//
// (Keeping the gradient itself would save no time: its producer then has to
// touch new memory each time, where the copy goes into memory of the round
// before.)
template <typename T>
class SparseGradientSum final : public GradientSum {
 public:
  using Sum = SlotType<T>;

  // `pool`, which several sums may share, lends the memory. As long as the
  // gradients held take no more than `min_merge_bytes`, they are not merged.
  explicit SparseGradientSum(std::shared_ptr<ChunkPool> pool,
                             int64_t min_merge_bytes = kDefaultMinMergeBytes,
                             CpuLevel cpu_level = BestCpuLevel())
      : pool_(std::move(pool)),
        min_merge_bytes_(min_merge_bytes),
        cpu_level_(cpu_level) {}

  ~SparseGradientSum() override { pool_->EndRound(std::move(chunks_)); }

  // Adds a gradient whose rows have `row_size` elements, as many as in all
  // calls: row i of `values` belongs to row rows[i], which is not negative.
  // Rows come in any order and may repeat. Returns false, and has changed
  // nothing, when there is no memory.
  bool Add(std::vector<int64_t> rows, int64_t row_size, const T* values,
           Sharder& sharder);

  void Merge(GradientSum& other, Sharder& sharder) override;

  // Writes each row that any gradient contained, once, in ascending order,
  // summed over the `num_gradients` gradients and divided as `reduction` says.
  // `allocate` is told the number of rows and gives the memory; when it returns
  // false, so does Finish(). Ends the life of the sum.
  bool Finish(
      Reduction reduction, int64_t num_gradients,
      const std::function<bool(int64_t num_rows, SparseResult<T>*)>& allocate,
      Sharder& sharder);

  // How many rows are kept, equal ones counted each time.
  int64_t num_held_rows() const { return num_held_rows_; }

 private:
  static constexpr int64_t kDefaultMinMergeBytes = 16 << 20;

  // Rows next to each other in memory: a part of a gradient, or a merge.
  struct Piece {
    const int64_t* rows;
    int64_t num_rows;
    int64_t gradient;              // the gradient's number, or kMerged
    const T* values;               // a gradient's
    const Sum* sums;               // a merge's
    const int32_t* num_gradients;  // a merge's: how many contained each row
  };
  static constexpr int64_t kMerged = -1;

  class Reducer;

  // Memory for at least one row: what is left of the last chunk, or a new one.
  bool MakeRoom(size_t row_bytes, int64_t num_rows);

  // Merges all pieces into one. Without memory for it, all stays as it is.
  void MergePieces(Sharder& sharder);

  const std::shared_ptr<ChunkPool> pool_;
  const int64_t min_merge_bytes_;
  const CpuLevel cpu_level_;
  int64_t row_size_ = 0;
  std::vector<Piece> pieces_;  // in order of arrival; none is empty
  // What the pieces point to: values and sums; rows; numbers of gradients.
  std::vector<Chunk> chunks_;
  std::vector<std::vector<int64_t>> rows_;
  std::vector<std::vector<int32_t>> num_gradients_;
  size_t used_bytes_ = 0;  // of the last chunk
  int64_t next_gradient_ = 0;
  int64_t num_held_rows_ = 0;
  int64_t num_merged_rows_ = 0;  // after the last merge: all different
  RowSketch sketch_;             // of all rows added
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ACCUMULATOR_SPARSE_H_
