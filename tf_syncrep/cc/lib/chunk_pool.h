// Memory that is used again from one round of training to the next.

#ifndef TF_SYNCREP_CC_LIB_CHUNK_POOL_H_
#define TF_SYNCREP_CC_LIB_CHUNK_POOL_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"

namespace tf_syncrep {

// A single round that needs much memory must not keep it for ever: at most this
// many times what the last round needed is kept for reuse.
inline constexpr size_t kMaxTimesKept = 4;

// A piece of memory, aligned to a cache line at least.
struct Chunk {
  OwnedBuffer buffer;
  size_t bytes = 0;
};

// Keeps memory that is not in use. Each round needs about as much of it as the
// round before. Fresh memory costs a page fault for each page, and the zeros
// that the operating system fills it with; that takes longer than the work that
// the memory is used for. Thread-safe.
class ChunkPool {
 public:
  // Returns a chunk of at least `bytes` bytes: a kept one, at most
  // kMaxTimesKept times as large unless `bytes` is small, or a new one that is
  // somewhat larger. It has no owner when there is no memory. It comes back
  // when nobody owns it any more.
  static Chunk Get(const std::shared_ptr<ChunkPool>& pool, size_t bytes);

  // Ends a round that has needed `needed_bytes`. Frees what is kept beyond
  // kMaxTimesKept times as much; chunks that are still in use come back
  // nevertheless.
  void EndRound(size_t needed_bytes) noexcept;

  size_t kept_bytes() const;

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };

  struct Piece {
    std::unique_ptr<void, Free> data;
    size_t bytes = 0;
  };

  // Returns a piece without data when there is no memory.
  static Piece NewPiece(size_t bytes);

  Piece TakeKept(size_t bytes);

  // Keeps a piece, or frees it when there is no memory to remember it.
  void Return(Piece piece) noexcept;

  // The same as kept_bytes(), for callers that hold the lock.
  size_t TotalKept() const TF_SYNCREP_REQUIRES(mu_);

  mutable Mutex mu_;
  std::vector<Piece> kept_ TF_SYNCREP_GUARDED_BY(mu_);  // ascending sizes
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CHUNK_POOL_H_
