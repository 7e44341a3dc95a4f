// ChunkPool: memory comes back, and not too much of it is kept.

#include "tf_syncrep/cc/lib/chunk_pool.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

Chunk GetWritten(const std::shared_ptr<ChunkPool>& pool, size_t bytes) {
  Chunk chunk = ChunkPool::Get(pool, bytes);
  EXPECT_GE(chunk.bytes, bytes);
  std::memset(chunk.buffer.data, 1, bytes);
  return chunk;
}

class ChunkPoolTest : public testing::Test {
 protected:
  const std::shared_ptr<ChunkPool> pool_ = std::make_shared<ChunkPool>();
};

TEST_F(ChunkPoolTest, TheSmallestThatWillDoIsUsedAgain) {
  const void* middle = nullptr;
  {
    const Chunk chunks[] = {GetWritten(pool_, 1 << 18),
                            GetWritten(pool_, 1 << 20),
                            GetWritten(pool_, 9 << 20)};
    middle = chunks[1].buffer.data;
    EXPECT_EQ(pool_->kept_bytes(), 0u);
  }
  EXPECT_GE(pool_->kept_bytes(), (1u << 18) + (1u << 20) + (9u << 20));
  EXPECT_EQ(ChunkPool::Get(pool_, 1 << 19).buffer.data, middle);
}

TEST_F(ChunkPoolTest, OneThatIsFarTooLargeIsLeft) {
  const void* const large = GetWritten(pool_, 1 << 20).buffer.data;
  const size_t kept = pool_->kept_bytes();
  const Chunk small = GetWritten(pool_, (1 << 18) - (1 << 16));
  EXPECT_NE(small.buffer.data, large);
  EXPECT_EQ(pool_->kept_bytes(), kept);
  EXPECT_EQ(ChunkPool::Get(pool_, 1 << 20).buffer.data, large);
}

TEST_F(ChunkPoolTest, LargeChunksAreAlignedToHugePages) {
  const Chunk chunk = ChunkPool::Get(pool_, 8 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk.buffer.data) % (2 << 20), 0u);
}

TEST_F(ChunkPoolTest, AfterASmallRoundTheMemoryOfALargeOneIsFreed) {
  GetWritten(pool_, 40 << 20);
  pool_->EndRound(20 << 20);
  EXPECT_GE(pool_->kept_bytes(), size_t{40} << 20);
  GetWritten(pool_, 1 << 20);
  pool_->EndRound(1 << 20);
  EXPECT_GE(pool_->kept_bytes(), size_t{1} << 20);
  EXPECT_LE(pool_->kept_bytes(), size_t{4} << 20);
}

TEST_F(ChunkPoolTest, AChunkOutlivesItsPool) {
  auto pool = std::make_shared<ChunkPool>();
  const Chunk chunk = GetWritten(pool, 5000);
  pool.reset();
  std::memset(chunk.buffer.data, 2, chunk.bytes);
}

TEST_F(ChunkPoolTest, NothingToHold) {
  EXPECT_NE(ChunkPool::Get(pool_, 0).buffer.owner, nullptr);
}

}  // namespace
}  // namespace tf_syncrep
