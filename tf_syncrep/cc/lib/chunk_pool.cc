#include "tf_syncrep/cc/lib/chunk_pool.h"

#include <algorithm>
#include <utility>

#include "tf_syncrep/cc/lib/huge_pages.h"

namespace tf_syncrep {
namespace {

constexpr size_t kCacheLineBytes = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

Chunk NewChunk(size_t bytes) {
  // A huge page can only back memory that is aligned as it is.
  const size_t alignment =
      bytes >= 2 * kHugePageBytes ? kHugePageBytes : kCacheLineBytes;
  bytes = (bytes + alignment - 1) / alignment * alignment;
  Chunk chunk;
  chunk.data.reset(std::aligned_alloc(alignment, bytes));
  if (chunk.data != nullptr) {
    chunk.bytes = bytes;
    AdviseHugePages(chunk.data.get(), bytes);
  }
  return chunk;
}

size_t TotalBytes(const std::vector<Chunk>& chunks) {
  size_t total = 0;
  for (const Chunk& chunk : chunks) {
    total += chunk.bytes;
  }
  return total;
}

bool IsSmaller(const Chunk& a, const Chunk& b) { return a.bytes < b.bytes; }

}  // namespace

Chunk ChunkPool::Get(size_t min_bytes, size_t new_bytes) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto best = std::find_if(
        free_.begin(), free_.end(),
        [=](const Chunk& chunk) { return chunk.bytes >= min_bytes; });
    if (best != free_.end()) {
      Chunk chunk = std::move(*best);
      free_.erase(best);
      return chunk;
    }
  }
  return NewChunk(std::max(min_bytes, new_bytes));
}

void ChunkPool::Return(std::vector<Chunk> chunks) {
  std::lock_guard<std::mutex> lock(mu_);
  for (Chunk& chunk : chunks) {
    const auto place =
        std::lower_bound(free_.begin(), free_.end(), chunk, IsSmaller);
    free_.insert(place, std::move(chunk));
  }
}

void ChunkPool::EndRound(std::vector<Chunk> chunks) {
  const size_t limit = 2 * TotalBytes(chunks);
  Return(std::move(chunks));
  std::vector<Chunk> surplus;  // freed after the lock
  std::lock_guard<std::mutex> lock(mu_);
  // The largest go first, as the pool looks for the smallest that will do.
  for (size_t total = TotalBytes(free_); total > limit;) {
    total -= free_.back().bytes;
    surplus.push_back(std::move(free_.back()));
    free_.pop_back();
  }
}

size_t ChunkPool::kept_bytes() const {
  std::lock_guard<std::mutex> lock(mu_);
  return TotalBytes(free_);
}

}  // namespace tf_syncrep
