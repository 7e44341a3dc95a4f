// The sum of sparse gradients.

#ifndef TF_SYNCREP_CC_LIB_ACCUMULATOR_SPARSE_H_
#define TF_SYNCREP_CC_LIB_ACCUMULATOR_SPARSE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_loops.h"
#include "tf_syncrep/cc/lib/chunk_pool.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"
#include "tf_syncrep/cc/lib/row_index.h"
#include "tf_syncrep/cc/lib/row_order.h"
#include "tf_syncrep/cc/lib/sharder.h"
#include "tf_syncrep/cc/lib/spares.h"

namespace tf_syncrep {

// In which order a sum hands its rows out.
enum class ResultOrder {
  kArrival,    // of the first gradient that contained each
  kAscending,  // takes a sort, and a copy of the values in their new order
};

// The rows of a sum, each once, and their values, of the gradients' type.
struct SparseResult {
  int64_t num_rows = 0;
  OwnedBuffer rows;  // int64_t
  OwnedBuffer values;
};

// The rows of a sum apart from their values, all by the rows' numbers.
struct SummedRows {
  struct Count {
    int32_t num_gradients;  // how many contained the row
    int32_t last_gradient;  // the number of the last of these
  };

  // Forgets all, and keeps its memory.
  void Clear() {
    index.Clear();
    counts.clear();
  }

  RowIndex index;
  std::vector<Count> counts;
  std::vector<int32_t> numbers;  // of the rows of the gradient being added
};

// Memory that sums use one after the other, so that each round need not touch
// fresh pages. Thread-safe.
struct SparseSumMemory {
  // For the values.
  const std::shared_ptr<ChunkPool> chunks = std::make_shared<ChunkPool>();
  Spares<SummedRows> rows;
  // What the values of the last sum took: the next may need as much.
  std::atomic<size_t> last_bytes{0};
};

// Adds gradients of type T up, row by row, in SlotType<T>, as they come.
//
// A hash table finds the sum of each row, so that adding a gradient takes as
// long as it has rows, however many were added before, and memory is held for
// the different rows alone. Their sums lie in one array in the order in which
// the rows came first, so that this array can be the result.
template <typename T>
class SparseGradientSum final : public GradientSum {
 public:
  using Sum = SlotType<T>;

  // Several sums may share `memory`.
  explicit SparseGradientSum(std::shared_ptr<SparseSumMemory> memory,
                             CpuLevel cpu_level = BestCpuLevel())
      : memory_(std::move(memory)),
        rows_(memory_->rows.Get()),
        loops_(AccumulatorLoopsFor<T>(cpu_level)),
        sum_loops_(AccumulatorLoopsFor<Sum>(cpu_level)) {
    // Not when the last sum ends: somebody may wait for its result.
    rows_->Clear();
  }

  ~SparseGradientSum() override;

  // Adds a gradient whose rows have `row_size` elements, as many as in all
  // calls: row i of `values` belongs to row rows[i], which is not negative.
  // Rows come in any order and may repeat. Returns false, and has changed
  // nothing, when there is no memory.
  bool Add(const std::vector<int64_t>& rows, int64_t row_size, const T* values,
           Sharder& sharder);

  void Merge(GradientSum& other, Sharder& sharder) override;

  const char* error() const override { return error_; }

  // Sets `result` to the rows that any gradient contained, summed over the
  // `num_gradients` gradients and divided as `reduction` says. Where Sum is T
  // and they are in this order, their values are not copied. Returns false when
  // there is no memory. Ends the life of the sum.
  bool Finish(Reduction reduction, int64_t num_gradients, ResultOrder order,
              Sharder& sharder, SparseResult* result);

 private:
  // Gives the rows of the index that have no sum yet one without gradients.
  // False, and nothing has changed, when there is no memory.
  bool MakeSums(int64_t row_size, Sharder& sharder);

  // The sum of the row with this number.
  Sum* SumOf(int64_t number) const {
    return static_cast<Sum*>(values_.buffer.data) + number * row_size_;
  }

  // Gets sums that are needed soon after numbers[i] into the cache. Those from
  // `num_sums_before` on are new, and written in their order.
  void FetchSums(const int32_t* numbers, int64_t i, int64_t num_rows,
                 int64_t num_sums_before) const;

  // Writes rows as sums, past the cache on request.
  void CopyRows(const T* rows, int64_t num_rows, bool is_streamed,
                Sum* to) const;

  // What the sum of the row with this number is to be divided by.
  Sum Divisor(Reduction reduction, int64_t num_gradients, int64_t number) const;

  // Each writes the results of the rows from `begin` to `end`, by their numbers
  // or their places in `sorted`.
  void DivideInPlace(Reduction reduction, int64_t num_gradients, int64_t begin,
                     int64_t end);
  void DivideTo(Reduction reduction, int64_t num_gradients, int64_t begin,
                int64_t end, T* out) const;
  template <typename Row>
  void DivideSorted(Reduction reduction, int64_t num_gradients,
                    const RowOccurrence<Row>* sorted, int64_t begin,
                    int64_t end, int64_t* rows, T* out) const;

  // Writes all results in the order of their rows. False when there is no
  // memory.
  template <typename Row>
  bool WriteSorted(Reduction reduction, int64_t num_gradients, Sharder& sharder,
                   int64_t* rows_out, T* out);

  // A chunk of the pool, counted among what this round needs.
  Chunk GetChunk(size_t bytes);

  const std::shared_ptr<SparseSumMemory> memory_;
  std::unique_ptr<SummedRows> rows_;
  const AccumulatorLoops<T>& loops_;
  const AccumulatorLoops<Sum>& sum_loops_;
  int64_t row_size_ = 0;
  Chunk values_;             // the sums, by the rows' numbers
  size_t result_bytes_ = 0;  // that Finish() needed besides
  int32_t num_gradients_ = 0;
  const char* error_ = nullptr;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ACCUMULATOR_SPARSE_H_
