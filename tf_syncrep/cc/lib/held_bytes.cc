#include "tf_syncrep/cc/lib/held_bytes.h"

#include <algorithm>
#include <cstdlib>

namespace tf_syncrep {

HeldBytesBudget& HeldBytesBudget::OfProcess() {
  // Never destroyed, since accumulators may outlive static destruction.
  static HeldBytesBudget* const budget = [] {
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
  }();
  return *budget;
}

}  // namespace tf_syncrep
