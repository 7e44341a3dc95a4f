#include "tf_syncrep/cc/lib/chunk_pool.h"

#include <algorithm>
#include <new>
#include <utility>

#include "tf_syncrep/cc/lib/zero_pages.h"

namespace tf_syncrep {
namespace {

constexpr size_t kCacheLineBytes = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

// This much memory is always worth keeping, however much less is needed.
constexpr size_t kFewBytes = size_t{64} << 10;

// A new chunk is larger by this fraction, for a later round that needs some
// more. Pages that nobody touches take no memory.
constexpr size_t kBytesPerSpareByte = 8;

size_t MostKept(size_t needed_bytes) {
  return kMaxTimesKept * std::max(needed_bytes, kFewBytes);
}

}  // namespace

Chunk ChunkPool::Get(const std::shared_ptr<ChunkPool>& pool, size_t bytes) {
  Piece piece = pool->TakeKept(bytes);
  if (piece.data == nullptr) {
    piece = NewPiece(bytes + bytes / kBytesPerSpareByte);
  }
  if (piece.data == nullptr) {
    return {};
  }
  const size_t piece_bytes = piece.bytes;
  void* const data = piece.data.release();
  try {
    return {{data, std::shared_ptr<void>(data,
                                         [pool, piece_bytes](void* unused) {
                                           Piece back;
                                           back.data.reset(unused);
                                           back.bytes = piece_bytes;
                                           pool->Return(std::move(back));
                                         })},
            piece_bytes};
  } catch (const std::bad_alloc&) {
    return {};  // the shared_ptr has given the piece back
  }
}

void ChunkPool::EndRound(size_t needed_bytes) noexcept {
  while (true) {
    Piece surplus;  // freed after the lock
    const MutexLock lock(mu_);
    if (TotalKept() <= MostKept(needed_bytes)) {
      return;
    }
    // The largest chunks are freed first, since the pool looks for the smallest
    // that suffices.
    surplus = std::move(kept_.back());
    kept_.pop_back();
  }
}

size_t ChunkPool::kept_bytes() const {
  const MutexLock lock(mu_);
  return TotalKept();
}

size_t ChunkPool::TotalKept() const {
  size_t total = 0;
  for (const Piece& piece : kept_) {
    total += piece.bytes;
  }
  return total;
}

ChunkPool::Piece ChunkPool::NewPiece(size_t bytes) {
  // Huge pages can only back memory with their own alignment.
  const size_t alignment =
      bytes >= 2 * kHugePageBytes ? kHugePageBytes : kCacheLineBytes;
  bytes = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  Piece piece;
  piece.data.reset(std::aligned_alloc(alignment, bytes));
  if (piece.data != nullptr) {
    piece.bytes = bytes;
    AdviseHugePages(piece.data.get(), bytes);
  }
  return piece;
}

ChunkPool::Piece ChunkPool::TakeKept(size_t bytes) {
  const MutexLock lock(mu_);
  const auto best =
      std::find_if(kept_.begin(), kept_.end(),
                   [=](const Piece& piece) { return piece.bytes >= bytes; });
  // A chunk that is far too large is left for those who need it.
  if (best == kept_.end() || best->bytes > MostKept(bytes)) {
    return {};
  }
  Piece piece = std::move(*best);
  kept_.erase(best);
  return piece;
}

void ChunkPool::Return(Piece piece) noexcept {
  const MutexLock lock(mu_);
  const auto place = std::lower_bound(
      kept_.begin(), kept_.end(), piece,
      [](const Piece& a, const Piece& b) { return a.bytes < b.bytes; });
  try {
    kept_.insert(place, std::move(piece));
    // The piece is freed: there is no memory to remember it.
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace tf_syncrep
