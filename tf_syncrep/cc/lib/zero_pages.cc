#include "tf_syncrep/cc/lib/zero_pages.h"

#include <sys/mman.h>

#include <memory>
#include <new>

#include "tf_syncrep/cc/lib/huge_pages.h"

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

}  // namespace tf_syncrep
