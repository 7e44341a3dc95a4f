// ChunkPool: memory comes back, and not too much of it is kept.

#include "tf_syncrep/cc/lib/chunk_pool.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

std::vector<Chunk> GetChunks(ChunkPool& pool,
                             const std::vector<size_t>& sizes) {
  std::vector<Chunk> chunks;
  for (const size_t bytes : sizes) {
    chunks.push_back(pool.Get(bytes, bytes));
    EXPECT_GE(chunks.back().bytes, bytes);
    std::memset(chunks.back().data.get(), 1, bytes);
  }
  return chunks;
}

TEST(ChunkPoolTest, TheSmallestThatWillDoIsUsedAgain) {
  ChunkPool pool;
  std::vector<Chunk> chunks = GetChunks(pool, {1 << 10, 1 << 16, 9 << 20});
  const void* const middle = chunks[1].data.get();
  pool.EndRound(std::move(chunks));
  const Chunk again = pool.Get((1 << 10) + 1, 1 << 12);
  EXPECT_EQ(again.data.get(), middle);
}

TEST(ChunkPoolTest, ANewChunkHasTheLargerSize) {
  ChunkPool pool;
  EXPECT_GE(pool.Get(10, 5000).bytes, 5000u);
  EXPECT_GE(pool.Get(6000, 50).bytes, 6000u);
}

TEST(ChunkPoolTest, LargeChunksAreAlignedToHugePages) {
  ChunkPool pool;
  const Chunk chunk = pool.Get(8 << 20, 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk.data.get()) % (2 << 20), 0u);
}

TEST(ChunkPoolTest, AfterASmallRoundTheMemoryOfALargeOneIsFreed) {
  ChunkPool pool;
  pool.EndRound(GetChunks(pool, std::vector<size_t>(10, 1 << 20)));
  EXPECT_EQ(pool.kept_bytes(), size_t{10} << 20);
  pool.EndRound(GetChunks(pool, {1 << 20}));
  EXPECT_EQ(pool.kept_bytes(), size_t{2} << 20);
}

}  // namespace
}  // namespace tf_syncrep
