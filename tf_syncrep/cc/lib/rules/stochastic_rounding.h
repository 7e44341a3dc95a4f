// Rounds to half and bfloat16 up or down at random, so that the mean is right.
//
// A step below half of a weight's last place is lost when it is rounded to the
// nearest number, however often it is made. Rounded stochastically, it moves
// the weight by a whole place with the probability that is right on average.

#ifndef TF_SYNCREP_CC_LIB_RULES_STOCHASTIC_ROUNDING_H_
#define TF_SYNCREP_CC_LIB_RULES_STOCHASTIC_ROUNDING_H_

#include <cstdint>
#include <type_traits>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rows/row_hash.h"

namespace tf_syncrep {

// Whether values of type T are rounded when they are stored.
template <typename T>
inline constexpr bool kIsRounded = !std::is_same_v<T, SlotType<T>>;

// The random numbers of the elements of one row in one update.
struct RowDraws {
  uint32_t low;
  uint32_t high;
  uint32_t first;  // the number of the first element of an array

  // Returns 32 random bits for an element, as numbered in the array. It is the
  // 32-bit hash of C. Wellons' hash-prospector, with `high` in its middle.
  TF_SYNCREP_ALWAYS_INLINE uint32_t Of(uint32_t element) const {
    uint32_t x = low + (first + element) * 0x9e3779b9u;
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x ^= high;
    x = (x ^ (x >> 15)) * 0x735a2d97u;
    return x ^ (x >> 15);
  }
};

// The random numbers of one update. They depend on the seed, the update's
// number, the row and the element alone, and not on who computes them.
class RoundingDraws {
 public:
  // Row i of the arrays is row `first_row + i * row_stride` of a whole table.
  RoundingDraws(int64_t seed, int64_t update, int64_t first_row,
                int64_t row_stride)
      : stream_(HashRow(static_cast<int64_t>(HashRow(seed) ^
                                             static_cast<uint64_t>(update)))),
        first_row_(static_cast<uint64_t>(first_row)),
        row_stride_(static_cast<uint64_t>(row_stride)) {}

  RowDraws OfRow(int64_t row, int64_t first_element) const {
    const uint64_t in_table =
        first_row_ + static_cast<uint64_t>(row) * row_stride_;
    const uint64_t hash = HashRow(static_cast<int64_t>(stream_ ^ in_table));
    return {static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32),
            static_cast<uint32_t>(first_element)};
  }

 private:
  uint64_t stream_;
  uint64_t first_row_;
  uint64_t row_stride_;
};

// Rounds to one of the two neighbours of a value by 32 random bits: away from
// zero with a probability that is the distance from the neighbour that is
// closer to zero, in units of the distance of both. A value that T has stays as
// it is. NaNs, infinities, and values beyond the largest finite one are rounded
// to nearest, so that no more weights become infinite.
template <typename T>
TF_SYNCREP_ALWAYS_INLINE T RoundStochastically(SlotType<T> value,
                                               uint32_t draw);

template <>
TF_SYNCREP_ALWAYS_INLINE BFloat16 RoundStochastically<BFloat16>(float value,
                                                                uint32_t draw) {
  constexpr uint32_t kLargest = 0x7f7f0000u;
  const uint32_t bits = float16_internal::BitsFromFloat(value);
  const uint32_t rounded = (bits + (draw >> 16)) >> 16;
  const uint32_t nearest = Narrow<BFloat16>(value).bits;
  const bool is_inside = (bits & 0x7fffffffu) < kLargest;
  return BFloat16{static_cast<uint16_t>(is_inside ? rounded : nearest)};
}

template <>
TF_SYNCREP_ALWAYS_INLINE Half RoundStochastically<Half>(float value,
                                                        uint32_t draw) {
  using float16_internal::FloatFromBits;
  constexpr uint32_t kLargest = 0x477fe000u;  // 65504
  constexpr uint32_t kSmallestNormal = (127u - 14u) << 23;
  constexpr float kDenormalScale = 0x1p44f;
  const uint32_t bits = float16_internal::BitsFromFloat(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal =
      (magnitude - ((127u - 15u) << 23) + (draw >> 19)) >> 13;
  // A half denormal is a multiple of 2^-24: here it has 20 bits behind the
  // point. Numbers that are none must not be converted, since they may not fit.
  const bool is_denormal = magnitude < kSmallestNormal;
  const float small = FloatFromBits(is_denormal ? magnitude : 0u);
  const auto fixed_point = static_cast<int32_t>(small * kDenormalScale);
  const uint32_t denormal =
      (static_cast<uint32_t>(fixed_point) + (draw >> 12)) >> 20;
  const uint32_t inside = (is_denormal ? denormal : normal) | sign;
  const uint32_t nearest = Narrow<Half>(value).bits;
  return Half{static_cast<uint16_t>(magnitude < kLargest ? inside : nearest)};
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_RULES_STOCHASTIC_ROUNDING_H_
