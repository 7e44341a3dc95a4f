#include "tf_syncrep/cc/lib/table/initial_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tf_syncrep/cc/lib/table/key_hash.h"

namespace tf_syncrep {
namespace {

using Block = std::array<uint32_t, 4>;

Block Philox(Block counter, uint64_t stream) {
  constexpr uint64_t kMultiplierA = 0xD2511F53;
  constexpr uint64_t kMultiplierB = 0xCD9E8D57;
  constexpr uint32_t kWeylA = 0x9E3779B9;
  constexpr uint32_t kWeylB = 0xBB67AE85;
  constexpr int kRounds = 10;
  auto low = static_cast<uint32_t>(stream);
  auto high = static_cast<uint32_t>(stream >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = kMultiplierA * counter[0];
    const uint64_t b = kMultiplierB * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ low,
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ high,
               static_cast<uint32_t>(a)};
    low += kWeylA;
    high += kWeylB;
  }
  return counter;
}

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : name) {
    hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001b3u;
  }
  return hash;
}

// Returns a number from 0 to 1, but never 1.
double Uniform(uint32_t low, uint32_t high) {
  const uint64_t bits = uint64_t{high} << 32 | low;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Rounds once, to the nearest number, and ties to even.
template <typename T>
T Round(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    auto narrow = static_cast<float>(value);
    if constexpr (std::is_same_v<T, float>) {
      return narrow;
    } else {
      // The value is rounded to odd first, so that the second rounding gives
      // the same as one of the value itself (Boldo and Melquiond, 2008).
      if (static_cast<double>(narrow) != value && std::isfinite(narrow)) {
        uint32_t bits;
        std::memcpy(&bits, &narrow, sizeof(bits));
        if (std::abs(static_cast<double>(narrow)) > std::abs(value)) {
          --bits;
        }
        bits |= 1u;
        std::memcpy(&narrow, &bits, sizeof(bits));
      }
      return Narrow<T>(narrow);
    }
  }
}

}  // namespace

InitialValues::InitialValues(InitialKind kind, double first, double second,
                             uint64_t seed, std::string_view table)
    : kind_(kind),
      first_(first),
      second_(second),
      stream_(HashKey(static_cast<int64_t>(HashKey(static_cast<int64_t>(seed)) ^
                                           HashName(table)))) {}

void InitialValues::DrawPair(int64_t key, uint32_t pair, uint32_t attempt,
                             double* values) const {
  constexpr double kTwoPi = 6.283185307179586;
  const auto bits = static_cast<uint64_t>(key);
  const Block drawn = Philox({static_cast<uint32_t>(bits),
                              static_cast<uint32_t>(bits >> 32), pair, attempt},
                             stream_);
  const double u = Uniform(drawn[0], drawn[1]);
  const double v = Uniform(drawn[2], drawn[3]);
  if (kind_ == InitialKind::kUniform) {
    values[0] = u;
    values[1] = v;
    return;
  }
  const double radius = std::sqrt(-2 * std::log(1 - u));
  values[0] = radius * std::cos(kTwoPi * v);
  values[1] = radius * std::sin(kTwoPi * v);
}

template <typename T>
void InitialValues::Draw(int64_t key, int64_t width, T* vector) const {
  if (kind_ == InitialKind::kConstant) {
    std::fill(vector, vector + width, Round<T>(first_));
    return;
  }
  const double factor =
      kind_ == InitialKind::kUniform ? second_ - first_ : second_;
  for (int64_t begin = 0; begin < width; begin += 2) {
    const auto pair = static_cast<uint32_t>(begin / 2);
    double drawn[2];
    DrawPair(key, pair, 0, drawn);
    if (kind_ == InitialKind::kTruncatedNormal) {
      for (uint32_t attempt = 1;
           std::abs(drawn[0]) > 2 || std::abs(drawn[1]) > 2; ++attempt) {
        double again[2];
        DrawPair(key, pair, attempt, again);
        for (int i = 0; i < 2; ++i) {
          drawn[i] = std::abs(drawn[i]) > 2 ? again[i] : drawn[i];
        }
      }
    }
    const int64_t end = std::min(begin + 2, width);
    for (int64_t i = begin; i < end; ++i) {
      vector[i] = Round<T>(first_ + factor * drawn[i - begin]);
    }
  }
}

#define TF_SYNCREP_INSTANTIATE(T) \
  template void InitialValues::Draw(int64_t, int64_t, T*) const
TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

}  // namespace tf_syncrep
