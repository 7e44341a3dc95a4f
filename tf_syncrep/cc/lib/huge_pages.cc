#include "tf_syncrep/cc/lib/huge_pages.h"

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tf_syncrep {

void AdviseHugePages(void* data, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  // Smaller arrays mostly come from memory that was touched before.
  constexpr size_t kMinBytes = size_t{4} << 20;
  if (bytes < kMinBytes) {
    return;
  }
  // The whole huge pages within the array.
  const size_t before =
      (kHugePage - reinterpret_cast<uintptr_t>(data) % kHugePage) % kHugePage;
  if (before < bytes && (bytes - before) / kHugePage > 0) {
    // This is only advice: if it is refused, small pages will do.
    static_cast<void>(madvise(static_cast<char*>(data) + before,
                              (bytes - before) / kHugePage * kHugePage,
                              MADV_HUGEPAGE));
  }
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

}  // namespace tf_syncrep
