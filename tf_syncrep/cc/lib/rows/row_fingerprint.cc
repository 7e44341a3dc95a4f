#include "tf_syncrep/cc/lib/rows/row_fingerprint.h"

#include <cstring>

namespace tf_syncrep {
namespace {

// The keys are odd, and half of their bits are set.
constexpr uint64_t kKeys[] = {0x9e3779b97f4a7c15, 0xd1b54a32d192ed03,
                              0x8cb92ba72f3d8dd7, 0xabc98388fb8fac03};

// Both halves of a product depend on all bits of both factors; together they
// lose next to nothing.
uint64_t Mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t Word(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

}  // namespace

uint64_t RowFingerprint(const char* bytes, int64_t num, uint64_t seed) {
  uint64_t state = seed ^ kKeys[0];
  uint64_t other = seed ^ kKeys[1];
  const int64_t length = num;
  // There are two chains, which the processor runs side by side.
  for (; num >= 32; bytes += 32, num -= 32) {
    state = Mix(Word(bytes) ^ kKeys[2], Word(bytes + 8) ^ state);
    other = Mix(Word(bytes + 16) ^ kKeys[3], Word(bytes + 24) ^ other);
  }
  for (; num >= 8; bytes += 8, num -= 8) {
    state = Mix(Word(bytes) ^ kKeys[2], kKeys[1] ^ state);
  }
  if (num > 0) {
    uint64_t last = 0;
    std::memcpy(&last, bytes, num);
    other = Mix(last ^ kKeys[3], kKeys[2] ^ other);
  }
  return Mix(state ^ kKeys[2],
             other ^ static_cast<uint64_t>(length) ^ kKeys[3]);
}

}  // namespace tf_syncrep
