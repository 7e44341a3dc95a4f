// 16-bit floating point storage and its conversions to and from float.
//
// Variables and gradients may be stored in half or bfloat16; arithmetic never
// is. The conversions are branch-free integer code, so that a loop around them
// vectorises on every instruction set, and they do not rely on denormal floats,
// which TensorFlow's threads flush to zero.

#ifndef TF_SYNCREP_CC_LIB_FLOAT16_H_
#define TF_SYNCREP_CC_LIB_FLOAT16_H_

#include <cstdint>
#include <cstring>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

// IEEE 754 binary16; same layout as Eigen::half.
struct Half {
  uint16_t bits;
};

// The upper 16 bits of a binary32; same layout as Eigen::bfloat16.
struct BFloat16 {
  uint16_t bits;
};

// The type in which moments, powers and hyper-parameters of a variable of type
// T are kept, and in which its update is computed.
template <typename T>
struct SlotTypeOf {
  using type = T;
};
template <>
struct SlotTypeOf<Half> {
  using type = float;
};
template <>
struct SlotTypeOf<BFloat16> {
  using type = float;
};
template <typename T>
using SlotType = typename SlotTypeOf<T>::type;

namespace float16_internal {

TF_SYNCREP_ALWAYS_INLINE float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

TF_SYNCREP_ALWAYS_INLINE uint32_t BitsFromFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace float16_internal

// Widen() is exact. Narrow() rounds to nearest, ties to even; overflow gives an
// infinity and a NaN stays a (quiet) NaN.
TF_SYNCREP_ALWAYS_INLINE float Widen(float value) { return value; }
TF_SYNCREP_ALWAYS_INLINE double Widen(double value) { return value; }

TF_SYNCREP_ALWAYS_INLINE float Widen(BFloat16 value) {
  return float16_internal::FloatFromBits(static_cast<uint32_t>(value.bits)
                                         << 16);
}

TF_SYNCREP_ALWAYS_INLINE float Widen(Half value) {
  using float16_internal::FloatFromBits;
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  constexpr uint32_t kSmallestNormal = (127u - 14u) << 23;
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t magnitude = (value.bits & 0x7fffu) << 13;
  // A half denormal is mantissa * 2^-24: put the mantissa under the exponent of
  // 2^-14, then take 2^-14 away again, which is exact.
  const float denormal = FloatFromBits(magnitude + kSmallestNormal) -
                         FloatFromBits(kSmallestNormal);
  const uint32_t normal = magnitude + kRebias;
  const uint32_t infinite_or_nan = magnitude + 2 * kRebias;
  uint32_t bits = magnitude >= 0x0f800000u ? infinite_or_nan : normal;
  bits = magnitude < 0x00800000u ? float16_internal::BitsFromFloat(denormal)
                                 : bits;
  return FloatFromBits(bits | sign);
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE T Narrow(SlotType<T> value) {
  return value;
}

template <>
TF_SYNCREP_ALWAYS_INLINE BFloat16 Narrow<BFloat16>(float value) {
  const uint32_t bits = float16_internal::BitsFromFloat(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x0040u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return BFloat16{static_cast<uint16_t>(is_nan ? quiet_nan : rounded)};
}

template <>
TF_SYNCREP_ALWAYS_INLINE Half Narrow<Half>(float value) {
  using float16_internal::BitsFromFloat;
  using float16_internal::FloatFromBits;
  constexpr uint32_t kInfinity = 255u << 23;
  constexpr uint32_t kFirstOverflow = (127u + 16u) << 23;
  constexpr uint32_t kSmallestNormal = (127u - 14u) << 23;
  // Adding 0.5 aligns a half denormal's last bit with a float's last bit, so
  // the addition itself does the rounding.
  constexpr uint32_t kDenormalMagic = (127u - 1u) << 23;
  const uint32_t bits = BitsFromFloat(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t overflow = magnitude > kInfinity ? 0x7e00u : 0x7c00u;
  const uint32_t denormal =
      BitsFromFloat(FloatFromBits(magnitude) + FloatFromBits(kDenormalMagic)) -
      kDenormalMagic;
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal =
      (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
  uint32_t result = magnitude < kSmallestNormal ? denormal : normal;
  result = magnitude >= kFirstOverflow ? overflow : result;
  return Half{static_cast<uint16_t>(result | sign)};
}

}  // namespace tf_syncrep

// Expands INSTANTIATE(T) for each type of gradients and variables.
#define TF_SYNCREP_INSTANTIATE_ALL_TYPES(INSTANTIATE) \
  INSTANTIATE(Half);                                  \
  INSTANTIATE(BFloat16);                              \
  INSTANTIATE(float);                                 \
  INSTANTIATE(double)

#endif  // TF_SYNCREP_CC_LIB_FLOAT16_H_
