// RowFingerprint: any change changes it.

#include "tf_syncrep/cc/lib/rows/row_fingerprint.h"

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

uint64_t Of(const std::string& bytes, uint64_t seed = 0) {
  return RowFingerprint(bytes.data(), static_cast<int64_t>(bytes.size()), seed);
}

TEST(RowFingerprintTest, EachBitCounts) {
  std::mt19937 random(0);
  for (int64_t size : {1, 4, 7, 8, 12, 31, 32, 33, 64, 100, 256}) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random());
    }
    std::set<uint64_t> seen = {Of(bytes), Of(bytes, 1)};
    for (int64_t bit = 0; bit < 8 * size; ++bit) {
      std::string other = bytes;
      other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << (bit % 8)));
      seen.insert(Of(other));
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), 8 * size + 2) << size;
  }
}

TEST(RowFingerprintTest, ZerosOfEachLengthDiffer) {
  std::set<uint64_t> seen;
  for (int64_t size = 0; size < 300; ++size) {
    seen.insert(Of(std::string(size, '\0')));
  }
  EXPECT_EQ(seen.size(), 300u);
}

TEST(RowFingerprintTest, OrderOfWordsCounts) {
  const std::string a = "aaaaaaaa";
  const std::string b = "bbbbbbbb";
  const std::set<uint64_t> seen = {Of(a + b),
                                   Of(b + a),
                                   Of(a + a),
                                   Of(b + b),
                                   Of(a + b + a + b + a),
                                   Of(b + a + a + b + a),
                                   Of(b, Of(a)),
                                   Of(a, Of(b))};
  EXPECT_EQ(seen.size(), 8u);
}

// The rows are like those of floats after small changes, of which there are
// many.
TEST(RowFingerprintTest, ManyRowsDiffer) {
  std::set<uint64_t> seen;
  std::vector<float> row(16, 0.5f);
  constexpr int kRows = 200000;
  for (int i = 0; i < kRows; ++i) {
    row[i % 16] = static_cast<float>(i) * 1e-6f;
    seen.insert(RowFingerprint(reinterpret_cast<const char*>(row.data()),
                               16 * sizeof(float), 0));
  }
  EXPECT_EQ(static_cast<int>(seen.size()), kRows);
}

}  // namespace
}  // namespace tf_syncrep
