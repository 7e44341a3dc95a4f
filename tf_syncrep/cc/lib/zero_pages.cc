#include "tf_syncrep/cc/lib/zero_pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <new>

namespace tf_syncrep {

OwnedBuffer ZeroPages(size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return {};
  }
  // Rows are used in the order of their numbers, so only a part of the last
  // huge page is taken for nothing.
  AdviseHugePages(data, bytes);
  try {
    return {data, std::shared_ptr<void>(
                      data, [bytes](void* mapped) { munmap(mapped, bytes); })};
  } catch (const std::bad_alloc&) {
    // The deleter has run already.
    return {};
  }
}

void AdviseHugePages(void* data, size_t bytes) {
#if defined(MADV_HUGEPAGE)
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
