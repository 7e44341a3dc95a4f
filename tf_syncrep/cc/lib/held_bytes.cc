#include "tf_syncrep/cc/lib/held_bytes.h"

#include <algorithm>
#include <cstdlib>

namespace tf_syncrep {

namespace {

HeldBytesBudget* NewBudget() {
  constexpr int64_t kDefaultMegabytes = 1024;
  constexpr int64_t kMostMegabytes = int64_t{1} << 40;
  // No thread sets the environment while accumulators are made.
  const char* const text = std::getenv(  // NOLINT(concurrency-mt-unsafe)
      "TF_SYNCREP_UNMERGED_GRADIENTS_MB");
  char* end = nullptr;
  const int64_t number = text == nullptr ? 0 : std::strtoll(text, &end, 10);
  const bool is_number = end != text && end != nullptr && *end == '\0';
  return new HeldBytesBudget(
      (is_number ? std::clamp<int64_t>(number, 0, kMostMegabytes)
                 : kDefaultMegabytes)
      << 20);
}

}  // namespace

// The budget is never destroyed, since accumulators may outlive static
// destruction.
HeldBytesBudget& HeldBytesBudget::OfProcess() {
  static HeldBytesBudget* const budget = NewBudget();
  return *budget;
}

HeldBytesBudget& HeldBytesBudget::OfGpus() {
  static HeldBytesBudget* const budget = NewBudget();
  return *budget;
}

}  // namespace tf_syncrep
