// InitialValues are rounded once. tests/ops/test_table_ops.py has a twin of
// their numbers.

#include "tf_syncrep/cc/lib/table/initial_values.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {
namespace {

template <typename T>
std::vector<T> Draw(const InitialValues& values, int64_t key, int64_t width) {
  std::vector<T> drawn(width);
  values.Draw(key, width, drawn.data());
  return drawn;
}

TEST(InitialValuesTest, AreRoundedOnce) {
  // This is just above the middle between two halves. As a float it is the
  // middle, which would be rounded to even, that is, down.
  const double above = 1 + 0x1p-11 + 0x1p-40;
  const InitialValues half(InitialKind::kConstant, above, 0, 0, "");
  EXPECT_EQ(Widen(Draw<Half>(half, 0, 1)[0]), 1 + 0x1p-10f);
  const double brain_above = 1 + 0x1p-8 + 0x1p-40;
  const InitialValues brain(InitialKind::kConstant, brain_above, 0, 0, "");
  EXPECT_EQ(Widen(Draw<BFloat16>(brain, 0, 1)[0]), 1 + 0x1p-7f);
  for (const double value : {0.0, -0.0, 1.0, -2.5, 1e300, -1e300, 1e-300}) {
    const InitialValues constant(InitialKind::kConstant, value, 0, 0, "");
    EXPECT_EQ(Widen(Draw<Half>(constant, 0, 1)[0]),
              Widen(Narrow<Half>(static_cast<float>(value))));
    EXPECT_EQ(Draw<double>(constant, 0, 1)[0], value);
  }
}

}  // namespace
}  // namespace tf_syncrep
