// The error of an op that got no memory.

#ifndef TF_SYNCREP_CC_TF_OUT_OF_MEMORY_H_
#define TF_SYNCREP_CC_TF_OUT_OF_MEMORY_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tf_syncrep {

// ResourceExhausted: there is none for `what`, which takes about `bytes`.
inline absl::Status OutOfMemory(absl::string_view what, size_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "There is no memory for ", what, ", about ", bytes, " bytes"));
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_OUT_OF_MEMORY_H_
