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

// A single round that holds much does not hold on to memory for ever: no more
// is kept for reuse than so many times what the last round needed.
inline constexpr size_t kMaxTimesKept = 4;

// A piece of memory, aligned to a cache line at least.
struct Chunk {
  OwnedBuffer buffer;
  size_t bytes = 0;
};

// Keeps memory that is not in use. Each round needs about as much of it as the
// one before, and fresh memory costs a page fault for each page and the zeros
// that the operating system fills it with: more than the work that it is used
// for. Thread-safe.
class ChunkPool {
 public:
  // A chunk of at least `bytes` and, unless these are few, of no more than
  // kMaxTimesKept times as many: kept, or new and somewhat larger. Without an
  // owner when there is no memory. It comes back when nobody owns it any more.
  static Chunk Get(const std::shared_ptr<ChunkPool>& pool, size_t bytes);

  // Told how much a round has needed when it is over. Frees what is kept beyond
  // kMaxTimesKept times that; what is still in use comes back nevertheless.
  void EndRound(size_t needed_bytes);

  size_t kept_bytes() const;

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };

  struct Piece {
    std::unique_ptr<void, Free> data;
    size_t bytes = 0;
  };

  // Without data when there is no memory.
  static Piece NewPiece(size_t bytes);

  // One that is kept and will do, or none.
  Piece TakeKept(size_t bytes);

  void Return(Piece piece);

  // kept_bytes() for who holds the lock.
  size_t TotalKept() const TF_SYNCREP_REQUIRES(mu_);

  mutable Mutex mu_;
  std::vector<Piece> kept_ TF_SYNCREP_GUARDED_BY(mu_);  // ascending sizes
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CHUNK_POOL_H_
