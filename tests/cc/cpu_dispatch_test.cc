// The features of the processor that the library uses.

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

#include <limits>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

// The values are volatile, so that the processor computes, and not the
// compiler.
template <typename T>
T Product(T a, T b) {
  volatile T x = a;
  volatile T y = b;
  volatile T product = x * y;
  return product;
}

template <typename T>
class ScopedFlushDenormalsTest : public testing::Test {};

using FloatTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(ScopedFlushDenormalsTest, FloatTypes);

TYPED_TEST(ScopedFlushDenormalsTest, DenormalsCountAsZeroWhileItIsInScope) {
  using Limits = std::numeric_limits<TypeParam>;
  const TypeParam large = 1 / Limits::epsilon();
  TypeParam from_denormal = -1;
  TypeParam to_denormal = -1;
  TypeParam normal = -1;
  {
    const ScopedFlushDenormals flush_denormals;
    from_denormal = Product(Limits::denorm_min(), large);
    to_denormal = Product(Limits::min(), TypeParam(0.5));
    normal = Product(Limits::min(), TypeParam(2));
  }
  EXPECT_EQ(from_denormal, 0);
  EXPECT_EQ(to_denormal, 0);
  EXPECT_EQ(normal, 2 * Limits::min());
  // Each product is above zero if denormals are numbers.
  EXPECT_GT(Product(Limits::denorm_min(), large), 0);
  EXPECT_GT(Product(Limits::min(), TypeParam(0.5)), 0);
}

}  // namespace
}  // namespace tf_syncrep
