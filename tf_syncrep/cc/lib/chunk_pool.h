// Memory that is used again from one round of training to the next.

#ifndef TF_SYNCREP_CC_LIB_CHUNK_POOL_H_
#define TF_SYNCREP_CC_LIB_CHUNK_POOL_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace tf_syncrep {

// A piece of memory, aligned to a cache line at least.
struct Chunk {
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };

  std::unique_ptr<void, Free> data;
  size_t bytes = 0;
};

// Keeps chunks that are not in use. Each round needs about as much memory as
// the one before, and fresh memory costs a page fault for each page and the
// zeros that the operating system fills it with: more than what it is used for.
// Thread-safe.
class ChunkPool {
 public:
  // A chunk of at least `min_bytes`, kept or new; a new one has `new_bytes` if
  // these are more. Without data when there is no memory.
  Chunk Get(size_t min_bytes, size_t new_bytes);

  // Takes back chunks during a round.
  void Return(std::vector<Chunk> chunks);

  // Takes back all chunks of a round, and keeps no more than about twice as
  // much memory as these.
  void EndRound(std::vector<Chunk> chunks);

  size_t kept_bytes() const;

 private:
  mutable std::mutex mu_;    // guards free_
  std::vector<Chunk> free_;  // ascending sizes
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CHUNK_POOL_H_
