// KeptBytes: what ends the wait for room.

#include "tf_syncrep/cc/lib/kept_bytes.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

using Seconds = KeptBytes::Seconds;

bool Never() { return false; }

TEST(KeptBytesTest, ThereIsRoomBelowTheBound) {
  KeptBytes kept(100, Seconds(600));
  kept.Add(99);
  EXPECT_TRUE(kept.WaitForRoom(Never));
}

TEST(KeptBytesTest, WaitsUntilSomeIsFreed) {
  KeptBytes kept(100, Seconds(600));
  kept.Add(100);
  std::thread reader([&] { kept.Free(1); });
  EXPECT_TRUE(kept.WaitForRoom(Never));
  reader.join();
}

TEST(KeptBytesTest, WaitsUntilItIsClosed) {
  KeptBytes kept(100, Seconds(600));
  kept.Add(1000);
  std::thread reader([&] { kept.Close(); });
  EXPECT_TRUE(kept.WaitForRoom(Never));
  reader.join();
  EXPECT_TRUE(kept.WaitForRoom(Never));
  EXPECT_EQ(kept.gave_up(), KeptBytes::Reason::kNone);
}

TEST(KeptBytesTest, EndsWithItsStep) {
  KeptBytes kept(100, Seconds(600));
  kept.Add(100);
  std::atomic<int> asked{0};
  EXPECT_FALSE(kept.WaitForRoom([&] { return ++asked == 3; }));
}

TEST(KeptBytesTest, ReaderThatGetsNowhereIsGivenUp) {
  KeptBytes kept(100, Seconds(0.2));
  kept.Add(100);
  EXPECT_FALSE(kept.WaitForRoom(Never));
  kept.GiveUp(KeptBytes::Reason::kOutOfMemory);
  kept.GiveUp(KeptBytes::Reason::kNoProgress);
  EXPECT_EQ(kept.gave_up(), KeptBytes::Reason::kOutOfMemory);
  EXPECT_TRUE(kept.WaitForRoom(Never));
}

TEST(KeptBytesTest, ReaderThatGetsOnIsNot) {
  KeptBytes kept(100, Seconds(0.5));
  kept.Add(100);
  // Asked several times in that time, and each time it got on.
  int asked = 0;
  EXPECT_FALSE(kept.WaitForRoom([&] {
    kept.Progress();
    return ++asked == 40;
  }));
  EXPECT_EQ(asked, 40);
}

}  // namespace
}  // namespace tf_syncrep
