// The ids of several features, as one sequence that threads share.

#ifndef TF_SYNCREP_CC_LIB_ROWS_FEATURE_RANGES_H_
#define TF_SYNCREP_CC_LIB_ROWS_FEATURE_RANGES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

// The ids of one feature.
struct IdsOfFeature {
  const int32_t* ids32;  // these, or else
  const int64_t* ids64;  // these
  int64_t size;
};

// The ids of feature i are from begins[i] to begins[i + 1] in the sequence.
// Calls `visit(feature, begin, end)` for each feature that has ids in [begin,
// end), with the range of the feature's own ids. Stops, and returns false, when
// `visit` returns false.
template <typename Visit>
TF_SYNCREP_ALWAYS_INLINE bool VisitFeatures(const std::vector<int64_t>& begins,
                                            int64_t begin, int64_t end,
                                            const Visit& visit) {
  auto next = std::upper_bound(begins.begin(), begins.end(), begin);
  for (; begin < end; begin = *next++) {
    const int64_t first = *(next - 1);
    if (!visit(next - begins.begin() - 1, begin - first,
               std::min(end, *next) - first)) {
      return false;
    }
  }
  return true;
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_FEATURE_RANGES_H_
