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
#include "tf_syncrep/cc/lib/accumulator_loops.h"
#include "tf_syncrep/cc/lib/chunk_pool.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/row_index.h"
#include "tf_syncrep/cc/lib/sharder.h"
#include "tf_syncrep/cc/lib/spares.h"

namespace tf_syncrep {

// Where the rows of a sum are written.
template <typename T>
struct SparseResult {
  int64_t* rows = nullptr;
  T* values = nullptr;
};

// The sums of rows of type Sum, apart from their values.
template <typename Sum>
struct RowSums {
  struct RowSum {
    Sum* values;
    int32_t num_gradients;  // how many contained the row
    int32_t last_gradient;  // the number of the last of these
  };

  RowIndex index;
  std::vector<RowSum> sums;      // by the rows' numbers
  std::vector<int32_t> numbers;  // of the rows of the gradient being added
};

// Memory that sums of gradients of type T use one after the other, so that each
// round need not touch fresh pages. Thread-safe.
template <typename T>
struct SparseSumMemory {
  ChunkPool chunks;  // for the values
  Spares<RowSums<SlotType<T>>> row_sums;
};

// Adds gradients of type T up, row by row, in SlotType<T>, as they come.
//
// A hash table finds the sum of each row, so that adding a gradient takes as
// long as it has rows, however many were added before, and memory is held for
// the different rows alone. They are sorted at the end.
template <typename T>
class SparseGradientSum final : public GradientSum {
 public:
  using Sum = SlotType<T>;

  // Several sums may share `memory`.
  explicit SparseGradientSum(std::shared_ptr<SparseSumMemory<T>> memory,
                             CpuLevel cpu_level = BestCpuLevel())
      : memory_(std::move(memory)),
        rows_(memory_->row_sums.Get()),
        loops_(AccumulatorLoopsFor<T>(cpu_level)),
        sum_loops_(AccumulatorLoopsFor<Sum>(cpu_level)) {}

  ~SparseGradientSum() override;

  // Adds a gradient whose rows have `row_size` elements, as many as in all
  // calls: row i of `values` belongs to row rows[i], which is not negative.
  // Rows come in any order and may repeat. Returns false, and has changed
  // nothing, when there is no memory.
  bool Add(const std::vector<int64_t>& rows, int64_t row_size, const T* values,
           Sharder& sharder);

  void Merge(GradientSum& other, Sharder& sharder) override;

  const char* error() const override { return error_; }

  // Writes each row that any gradient contained, once, in ascending order,
  // summed over the `num_gradients` gradients and divided as `reduction` says.
  // `allocate` is told the number of rows and gives the memory; when it returns
  // false, so does Finish(). Ends the life of the sum.
  bool Finish(
      Reduction reduction, int64_t num_gradients,
      const std::function<bool(int64_t num_rows, SparseResult<T>*)>& allocate,
      Sharder& sharder);

 private:
  using RowSum = typename RowSums<Sum>::RowSum;

  // Gives the rows of the index that have no sum yet one without gradients.
  // False, and nothing has changed, when there is no memory.
  bool MakeSums(int64_t row_size);

  // Gets sums that are needed soon after numbers[i] into the cache. Those from
  // `num_sums_before` on are new, and written in their order.
  void FetchSums(const int32_t* numbers, int64_t i, int64_t num_rows,
                 int64_t num_sums_before, int64_t sum_bytes) const;

  const std::shared_ptr<SparseSumMemory<T>> memory_;
  std::unique_ptr<RowSums<Sum>> rows_;
  const AccumulatorLoops<T>& loops_;
  const AccumulatorLoops<Sum>& sum_loops_;
  int64_t row_size_ = 0;
  std::vector<Chunk> chunks_;  // what the values of the sums are in
  size_t used_bytes_ = 0;      // of the last chunk
  int32_t num_gradients_ = 0;
  const char* error_ = nullptr;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ACCUMULATOR_SPARSE_H_
