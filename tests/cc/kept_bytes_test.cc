// KeptBytes: what ends the wait for room.

#include "tf_syncrep/cc/lib/kept_bytes.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

using Seconds = KeptBytes::Seconds;

bool Never() { return false; }

TEST(KeptBytesTest, ThereIsRoomBelowTheBound) {
  KeptBytes kept(100, Seconds(600));
  ASSERT_TRUE(kept.TryAdd(99));
  EXPECT_TRUE(kept.WaitForRoom(1, Never));
}

TEST(KeptBytesTest, WhatDoesNotFitIsNotCountedUnlessItIsAlone) {
  KeptBytes kept(100, Seconds(600));
  ASSERT_TRUE(kept.TryAdd(60));
  EXPECT_FALSE(kept.TryAdd(41));
  EXPECT_TRUE(kept.TryAdd(40));
  kept.Free(100);
  EXPECT_EQ(kept.peak(), 100);
  EXPECT_TRUE(kept.WaitForRoom(101, Never));
  EXPECT_TRUE(kept.TryAdd(101));
}

TEST(KeptBytesTest, WaitsUntilSomeIsFreed) {
  KeptBytes kept(100, Seconds(600));
  ASSERT_TRUE(kept.TryAdd(100));
  std::thread reader([&] { kept.Free(1); });
  EXPECT_TRUE(kept.WaitForRoom(1, Never));
  reader.join();
}

TEST(KeptBytesTest, WaitsUntilItIsClosed) {
  KeptBytes kept(100, Seconds(600));
  ASSERT_TRUE(kept.TryAdd(1000));
  std::thread reader([&] { kept.Close(); });
  EXPECT_TRUE(kept.WaitForRoom(1, Never));
  reader.join();
  EXPECT_TRUE(kept.WaitForRoom(1, Never));
  EXPECT_EQ(kept.gave_up(), KeptBytes::Reason::kNone);
}

TEST(KeptBytesTest, EndsWithItsStep) {
  KeptBytes kept(100, Seconds(600));
  ASSERT_TRUE(kept.TryAdd(100));
  std::atomic<int> asked{0};
  EXPECT_FALSE(kept.WaitForRoom(1, [&] { return ++asked == 3; }));
}

TEST(KeptBytesTest, ReaderThatGetsNowhereIsGivenUp) {
  KeptBytes kept(100, Seconds(0.2));
  ASSERT_TRUE(kept.TryAdd(100));
  EXPECT_FALSE(kept.WaitForRoom(1, Never));
  kept.GiveUp(KeptBytes::Reason::kOutOfMemory);
  kept.GiveUp(KeptBytes::Reason::kNoProgress);
  EXPECT_EQ(kept.gave_up(), KeptBytes::Reason::kOutOfMemory);
  EXPECT_TRUE(kept.WaitForRoom(1, Never));
}

TEST(KeptBytesTest, ReaderThatGetsOnIsNot) {
  constexpr Seconds kPatience(0.5);
  KeptBytes kept(100, kPatience);
  ASSERT_TRUE(kept.TryAdd(100));
  // It was asked several times, and the reader had always made progress.
  int asked = 0;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(kept.WaitForRoom(1, [&] {
    kept.Progress();
    return ++asked == 40;
  }));
  // Before it is asked for the first time, there is no progress, and on a busy
  // machine that may take longer than the patience.
  if (asked > 0 || std::chrono::steady_clock::now() - begin <= kPatience) {
    EXPECT_EQ(asked, 40);
  }
}

}  // namespace
}  // namespace tf_syncrep
