// The sum of sparse gradients in memory of the GPU.
//
// A push keeps the gradient's rows as they are. The work is done when the
// gradients are taken: the rows are sorted, then the occurrences of each row
// are summed in their order of arrival. So the result has the same bits as on
// the host, and its rows always ascend.

#ifndef TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_SPARSE_H_
#define TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_SPARSE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/cuda/gpu_device.h"
#include "tf_syncrep/cc/lib/cuda/gpu_stream.h"
#include "tf_syncrep/cc/lib/cuda/row_keys.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/held_bytes.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// --- The launches ------------------------------------------------------------
//
// Pointers are to memory of the GPU that the stream belongs to. That GPU must
// be current.

// Copies indices, which others may change in their own memory, to `rows`. Sets
// `bad_index` to the first index that is negative or not below `limit`; there
// is no upper bound if `limit` is negative.
GpuError CopyRowsOnGpu(const void* indices, bool is_int64, int64_t num_indices,
                       int64_t limit, int64_t* rows, GpuBadIndex* bad_index,
                       GpuStream stream);

// Copies bytes within the GPU's memory.
GpuError CopyOnGpu(const void* from, size_t bytes, void* to, GpuStream stream);

// Waits for the stream, then copies bytes to the host.
GpuError ReadFromGpu(const void* from, size_t bytes, void* to,
                     GpuStream stream);

// Rows that are next to each other in memory: a gradient, or a merge of several
// gradients.
template <typename T>
struct GpuRowsPiece {
  int64_t num_rows;
  int64_t gradient;  // the gradient's number, or kMergedRows
  const int64_t* rows;
  const T* values;          // of a gradient
  const SlotType<T>* sums;  // of a merge
  // of a merge: how many gradients contained each row
  const int32_t* num_gradients;
};

inline constexpr int64_t kMergedRows = -1;

// Sorted occurrences of rows. A place encodes the number of a piece and a
// position in it.
template <typename T>
struct GpuSortedRows {
  int64_t num_occurrences;
  int num_pieces;
  int num_key_bits;  // low bits of the rows; all others are 0
  int64_t row_size;
  bool has_vectors;  // whether rows are whole vectors at aligned addresses
  // One entry for each occurrence; rows ascend, and equal ones are in order of
  // arrival.
  const uint64_t* rows;
  const uint64_t* places;
  // Where each distinct row begins. The array has room for one entry for each
  // occurrence, and the rest is unused.
  const int64_t* begins;
  const GpuRowsPiece<T>* pieces;
};

// How many bytes the sort needs to work in and for its result. The first five
// fields of `sorted` must be set.
template <typename T>
GpuError SortRowsWorkspaceBytes(const GpuSortedRows<T>& sorted, size_t* bytes);

// Sorts the occurrences in all pieces. The first five fields of `sorted` must
// be set; the others are set by the call, and point into the workspace, which
// has `workspace_bytes` bytes at a multiple of 256. `num_rows` receives the
// number of distinct rows.
template <typename T>
GpuError SortRowsOnGpu(const std::vector<GpuRowsPiece<T>>& pieces,
                       void* workspace, size_t workspace_bytes,
                       int64_t* num_rows, GpuSortedRows<T>* sorted,
                       GpuStream stream);

// Where the sums of `num_rows` rows are written.
template <typename T>
struct GpuReducedRows {
  int64_t num_rows;
  int64_t* rows;
  T* values;               // the sums, divided as `reduction` says; or null if
  SlotType<T>* sums;       // the sums are to stay undivided
  int32_t* num_gradients;  // how many gradients had each row
  Reduction reduction;
  int64_t count;  // of all gradients
};

// Sums each row's occurrences in their order.
template <typename T>
GpuError ReduceRowsOnGpu(const GpuSortedRows<T>& sorted,
                         const GpuReducedRows<T>& reduced, GpuStream stream);

// --- The sum -----------------------------------------------------------------

// Allocates memory of the GPU, at a multiple of 256. No owner when there is
// none.
using AllocateBytes = std::function<OwnedBuffer(size_t bytes)>;

// Adds up gradients of type T, row by row, in SlotType<T>, in the GPU's memory.
//
// Calls come from any thread, and return when the work is in the stream. The
// exception is a push that merges the held rows: it has to wait for the number
// of distinct rows. Rows are merged when they are many times as many as after
// the last merge, so that memory stays within a multiple of what the result
// takes, or when there are kMaxPieces gradients.
template <typename T>
class GpuSparseGradientSum final : public GradientSum {
 public:
  using Sum = SlotType<T>;

  // This many gradients are merged, however few rows they have: each has memory
  // of its own, which takes at least 256 bytes.
  static constexpr size_t kMaxPieces = size_t{1} << 12;

  // Rows are below `limit`, unless `limit` is negative. Rows are not merged for
  // the memory they take as long as those of this sum take no more than
  // `min_merge_bytes`, and those of all sums together no more than the budget.
  GpuSparseGradientSum(const GpuQueue& queue, int64_t limit,
                       int64_t min_merge_bytes = kDefaultMinMergeBytes,
                       HeldBytesBudget* budget = &HeldBytesBudget::OfGpus())
      : queue_(queue),
        limit_(limit),
        min_merge_bytes_(min_merge_bytes),
        budget_(budget),
        held_(budget) {}

  // Adds a gradient of `num_rows` rows of `row_size` elements, which is the
  // same in all calls. Row i of `values` belongs to row rows[i], which
  // CopyRowsOnGpu() has checked. `rows` has an owner; values without an owner
  // are copied. Returns false, and has changed nothing, when there is no
  // memory.
  bool Add(const OwnedBuffer& rows, int64_t num_rows, int64_t row_size,
           const OwnedBuffer& values, const AllocateBytes& allocate) {
    if (num_rows > kMaxGpuIndices - num_held_rows_) {
      return false;
    }
    const size_t value_bytes = static_cast<size_t>(num_rows) *
                               static_cast<size_t>(row_size) * sizeof(T);
    OwnedBuffer kept = values;
    if (num_rows > 0 && kept.owner == nullptr) {
      kept = allocate(value_bytes);
      if (kept.owner == nullptr) {
        return false;
      }
      Check(UseGpu(queue_.device));
      Check(CopyOnGpu(values.data, value_bytes, kept.data, queue_.stream));
    }
    const int64_t gradient = next_gradient_++;
    if (num_rows == 0) {
      return true;
    }
    row_size_ = row_size;
    pieces_.push_back({num_rows, gradient,
                       static_cast<const int64_t*>(rows.data),
                       static_cast<const T*>(kept.data), nullptr, nullptr});
    memory_.push_back(rows);
    memory_.push_back(std::move(kept));
    SetNumHeldRows(num_held_rows_ + num_rows);
    const bool is_much =
        held_.bytes() > min_merge_bytes_ || budget_->is_exceeded();
    if ((is_much && num_held_rows_ >= kHeldPerMergedRow * num_merged_rows_) ||
        pieces_.size() >= kMaxPieces) {
      MergePieces(allocate);
    }
    return true;
  }

  int64_t held_bytes() const override { return held_.bytes(); }

  void Merge(GradientSum& other, Sharder& /*sharder*/) override {
    auto& newer = static_cast<GpuSparseGradientSum&>(other);
    for (GpuRowsPiece<T>& piece : newer.pieces_) {
      if (piece.gradient != kMergedRows) {
        piece.gradient += next_gradient_;
      }
      pieces_.push_back(piece);
    }
    for (OwnedBuffer& buffer : newer.memory_) {
      memory_.push_back(std::move(buffer));
    }
    if (!newer.pieces_.empty()) {
      row_size_ = newer.row_size_;
    }
    newer.pieces_.clear();
    newer.memory_.clear();
    next_gradient_ += newer.next_gradient_;
    SetNumHeldRows(num_held_rows_ + newer.num_held_rows_);
    newer.SetNumHeldRows(0);
    num_merged_rows_ = std::max(num_merged_rows_, newer.num_merged_rows_);
    Check(newer.error_);
  }

  GpuError error() const override { return error_; }

  // How many rows are held; equal rows count each time.
  int64_t num_held_rows() const { return num_held_rows_; }

  // Sorts the rows, of which there must be some, and writes the number of
  // distinct ones to `num_rows`, in the GPU's memory. Returns false when there
  // is no memory. After that, or after WriteResult(), the sum must not be used
  // any more.
  bool Sort(int64_t* num_rows, const AllocateBytes& allocate) {
    // The sort takes no more, and two merged sums may have more together.
    if (num_held_rows_ > kMaxGpuIndices) {
      return false;
    }
    sorted_ = {};
    sorted_.num_occurrences = num_held_rows_;
    sorted_.num_pieces = static_cast<int>(pieces_.size());
    // Rows are not negative, so 63 bits are enough.
    sorted_.num_key_bits = limit_ < 0 ? 63 : gpu::NumKeyBits(limit_);
    sorted_.row_size = row_size_;
    sorted_.has_vectors = HasVectors();
    size_t bytes = 0;
    Check(UseGpu(queue_.device));
    Check(SortRowsWorkspaceBytes(sorted_, &bytes));
    workspace_ = allocate(bytes);
    if (workspace_.owner == nullptr) {
      return false;
    }
    if (error_ == nullptr) {
      Check(SortRowsOnGpu(pieces_, workspace_.data, bytes, num_rows, &sorted_,
                          queue_.stream));
    }
    return true;
  }

  // Writes the result after Sort(), for the number of rows that Sort() has
  // found.
  void WriteResult(Reduction reduction, int64_t num_gradients, int64_t num_rows,
                   int64_t* rows, T* values) {
    Reduce(
        {num_rows, rows, values, nullptr, nullptr, reduction, num_gradients});
  }

 private:
  // On a GPU there is less memory than on the host, but merging is quick.
  static constexpr int64_t kDefaultMinMergeBytes = int64_t{64} << 20;
  // Rows are merged when there are this many times more of them than there were
  // different rows at the last merge. So all merges together cost time linear
  // in the rows pushed.
  static constexpr int64_t kHeldPerMergedRow = 4;

  void SetNumHeldRows(int64_t num_rows) {
    num_held_rows_ = num_rows;
    held_.Set(num_rows * (static_cast<int64_t>(sizeof(int64_t)) +
                          row_size_ * static_cast<int64_t>(sizeof(T))));
  }

  void Check(GpuError error) {
    if (error_ == nullptr) {
      error_ = error;
    }
  }

  bool HasVectors() const {
    constexpr size_t kBytes = 16;
    const auto is_aligned = [](const void* pointer) {
      return reinterpret_cast<uintptr_t>(pointer) % kBytes == 0;
    };
    bool has_vectors =
        row_size_ % static_cast<int64_t>(kBytes / sizeof(T)) == 0;
    for (const GpuRowsPiece<T>& piece : pieces_) {
      has_vectors =
          has_vectors && is_aligned(piece.values) && is_aligned(piece.sums);
    }
    return has_vectors;
  }

  void Reduce(const GpuReducedRows<T>& reduced) {
    Check(UseGpu(queue_.device));
    if (error_ == nullptr && reduced.num_rows > 0) {
      Check(ReduceRowsOnGpu(sorted_, reduced, queue_.stream));
    }
    workspace_ = {};
  }

  // Merges all pieces into one. Without memory for it nothing changes.
  void MergePieces(const AllocateBytes& allocate) {
    const OwnedBuffer count = allocate(sizeof(int64_t));
    if (count.owner == nullptr ||
        !Sort(static_cast<int64_t*>(count.data), allocate)) {
      return;
    }
    int64_t num_rows = 0;
    if (error_ == nullptr) {
      Check(
          ReadFromGpu(count.data, sizeof(num_rows), &num_rows, queue_.stream));
    }
    if (error_ != nullptr) {
      return;
    }
    const auto n = static_cast<size_t>(num_rows);
    OwnedBuffer rows = allocate(n * sizeof(int64_t));
    OwnedBuffer sums =
        allocate(n * static_cast<size_t>(row_size_) * sizeof(Sum));
    OwnedBuffer num_gradients = allocate(n * sizeof(int32_t));
    if (rows.owner == nullptr || sums.owner == nullptr ||
        num_gradients.owner == nullptr) {
      workspace_ = {};
      return;
    }
    Reduce({num_rows, static_cast<int64_t*>(rows.data), nullptr,
            static_cast<Sum*>(sums.data),
            static_cast<int32_t*>(num_gradients.data), Reduction::kSum, 1});
    pieces_ = {{num_rows, kMergedRows, static_cast<const int64_t*>(rows.data),
                nullptr, static_cast<const Sum*>(sums.data),
                static_cast<const int32_t*>(num_gradients.data)}};
    memory_ = {std::move(rows), std::move(sums), std::move(num_gradients)};
    SetNumHeldRows(num_rows);
    num_merged_rows_ = num_rows;
  }

  const GpuQueue queue_;
  const int64_t limit_;
  const int64_t min_merge_bytes_;
  HeldBytesBudget* const budget_;
  HeldBytes held_;
  GpuError error_ = nullptr;
  int64_t row_size_ = 0;
  std::vector<GpuRowsPiece<T>> pieces_;  // in order of arrival; none is empty
  std::vector<OwnedBuffer> memory_;      // the memory that pieces_ point to
  int64_t next_gradient_ = 0;
  int64_t num_held_rows_ = 0;
  int64_t num_merged_rows_ = 0;  // after the last merge, when all rows differ
  // Set from Sort() until the result is written.
  GpuSortedRows<T> sorted_ = {};
  OwnedBuffer workspace_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_SPARSE_H_
