// Zeros that take no memory until they are written, and huge pages.

#ifndef TF_SYNCREP_CC_LIB_ZERO_PAGES_H_
#define TF_SYNCREP_CC_LIB_ZERO_PAGES_H_

#include <cstddef>

#include "tf_syncrep/cc/lib/owned_buffer.h"

namespace tf_syncrep {

// Returns `bytes` zeros, at least one, aligned to a page. The operating system
// provides the pages when they are written. There is no owner when there is no
// memory, or when the system knows at once that there will be none.
OwnedBuffer ZeroPages(size_t bytes);

// Asks the operating system to back [data, data + bytes), fresh memory of the
// heap, with huge pages if it can. Memory that is touched for the first time
// costs a page fault for every page; for an array of 100 MB these 25,000 faults
// take longer than filling it. Does nothing for small arrays, or on systems
// without such a request. The contents stay as they are.
void AdviseHugePages(void* data, size_t bytes);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ZERO_PAGES_H_
