// The sum of sparse gradients.
//
// A push keeps the gradient's rows as they are. The work is done when the
// gradients are taken: the rows are sorted, then the occurrences of each row
// are summed in their order of arrival. So it is done once, on all threads, and
// with no lock held.

#ifndef TF_SYNCREP_CC_LIB_ACCUMULATOR_SPARSE_H_
#define TF_SYNCREP_CC_LIB_ACCUMULATOR_SPARSE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/chunk_pool.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/gradient_loops.h"
#include "tf_syncrep/cc/lib/held_bytes.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

inline constexpr int64_t kMaxSparseRow = std::numeric_limits<uint32_t>::max();

// The rows of a sum, ascending and each once, and their values, which have the
// gradients' type.
struct SparseResult {
  int64_t num_rows = 0;
  OwnedBuffer rows;  // int64_t
  OwnedBuffer values;
};

// Memory that sums use one after the other, so that a round does not have to
// touch fresh pages. Thread-safe.
struct SparseSumMemory {
  explicit SparseSumMemory(
      HeldBytesBudget* budget = &HeldBytesBudget::OfProcess())
      : budget(budget) {}

  HeldBytesBudget* const budget;
  const std::shared_ptr<ChunkPool> chunks = std::make_shared<ChunkPool>();
  // How much the last sum copied; the next may need as much.
  std::atomic<size_t> last_copied_bytes{0};
  std::atomic<int64_t> last_num_rows{0};
};

// Rows that are next to each other in memory: a gradient, or a merge of several
// gradients.
struct RowsPiece {
  Array<int64_t> rows;
  OwnedBuffer values;  // a gradient's elements, or a merge's sums
  // For a merge: how many gradients contained each row. Empty for a gradient.
  Array<int32_t> num_gradients;
};

// Adds up gradients of type T, row by row, in SlotType<T>.
//
// The cost of adding a gradient depends on its own rows alone, however many
// rows are held already. Held rows are merged when they are many times as many
// as after the last merge or result, so that memory stays within a multiple of
// what the result takes.
template <typename T>
class SparseGradientSum final : public GradientSum {
 public:
  using Sum = SlotType<T>;

  // Several sums may share `memory`. Gradients are not merged as long as those
  // of this sum take no more than `min_merge_bytes`, and those of all sums
  // together no more than the memory's budget.
  explicit SparseGradientSum(std::shared_ptr<SparseSumMemory> memory,
                             CpuLevel cpu_level = BestCpuLevel(),
                             int64_t min_merge_bytes = kDefaultMinMergeBytes)
      : memory_(std::move(memory)),
        held_(memory_->budget),
        min_merge_bytes_(min_merge_bytes),
        loops_(GradientLoopsFor<T>(cpu_level)),
        sum_loops_(GradientLoopsFor<Sum>(cpu_level)) {}

  ~SparseGradientSum() override;

  // Adds a gradient whose rows have `row_size` elements, which is the same in
  // all calls: row i of `values` belongs to row rows[i], from 0 to
  // kMaxSparseRow. Rows come in any order and may repeat. Values with an owner
  // belong to nobody else, and are kept; values without an owner are copied.
  // Returns false, and has changed nothing, when there is no memory.
  bool Add(Array<int64_t> rows, int64_t row_size, const OwnedBuffer& values,
           Sharder& sharder);

  int64_t held_bytes() const override { return held_.bytes(); }

  // How many rows are held; equal rows count each time.
  int64_t num_held_rows() const { return num_held_rows_; }

  // Sets `result` to the rows that any gradient contained, summed over the
  // `num_gradients` gradients and divided as `reduction` says. Returns false
  // when there is no memory. The sum must not be used afterwards.
  bool Finish(Reduction reduction, int64_t num_gradients, Sharder& sharder,
              SparseResult* result);

 private:
  static constexpr int64_t kDefaultMinMergeBytes = int64_t{64} << 20;

  // The occurrences of rows, sorted by row; equal rows are in order of arrival.
  struct SortedRows;

  // Where the sums of the different rows go.
  struct ReducedRows;

  // Copies `bytes` of a gradient. The copy has no owner when there is no
  // memory.
  OwnedBuffer Copy(const void* values, size_t bytes, Sharder& sharder);

  // Merges the held rows if they are many more than the distinct ones among
  // them.
  void MergeIfMany(Sharder& sharder);

  // Merges all pieces into one. Returns false, and has changed nothing, when
  // there is no memory.
  bool MergePieces(Sharder& sharder);

  // Sorts the rows of all pieces. Returns false when there is no memory for it,
  // or too many rows are held to be numbered.
  bool SortRows(Sharder& sharder, SortedRows* sorted);
  void CountRows(Sharder& sharder, SortedRows* sorted) const;

  void ReduceRows(const SortedRows& sorted, const ReducedRows& reduced,
                  Sharder& sharder) const;

  // Sums the occurrences from `begin` to `end`, all of one row, whose number
  // among the distinct rows is given. `scratch` is for a part of a row.
  void ReduceRow(const SortedRows& sorted, int64_t begin, int64_t end,
                 int64_t number, const ReducedRows& reduced,
                 Sum* scratch) const;

  // Sums `size` columns of these occurrences, from `column` on.
  void SumOccurrences(const SortedRows& sorted, int64_t begin, int64_t end,
                      int64_t column, int64_t size, Sum* sum) const;

  void PrefetchValues(const SortedRows& sorted, int64_t i) const;

  // Returns a chunk of the pool, and counts it as needed in this round.
  Chunk GetChunk(size_t bytes);

  const std::shared_ptr<SparseSumMemory> memory_;
  HeldBytes held_;
  const int64_t min_merge_bytes_;
  const GradientLoops<T>& loops_;
  const GradientLoops<Sum>& sum_loops_;
  int64_t row_size_ = 0;
  std::vector<RowsPiece> pieces_;  // in order of arrival; none is empty
  int64_t num_held_rows_ = 0;
  int64_t num_merged_rows_ = 0;  // after the last merge, when all rows differ
  Chunk copies_;                 // the memory that gradients are copied to
  size_t used_of_copies_ = 0;
  size_t copied_bytes_ = 0;  // since the last merge
  size_t most_copied_bytes_ = 0;
  size_t needed_bytes_ = 0;  // of the pool, besides the copies
  bool is_finished_ = false;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ACCUMULATOR_SPARSE_H_
