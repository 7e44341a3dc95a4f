// Zeros that take no memory until they are written.

#ifndef TF_SYNCREP_CC_LIB_ZERO_PAGES_H_
#define TF_SYNCREP_CC_LIB_ZERO_PAGES_H_

#include <cstddef>

#include "tf_syncrep/cc/lib/owned_buffer.h"

namespace tf_syncrep {

// Returns `bytes` zeros, at least one, aligned to a page. The operating system
// provides the pages when they are written. There is no owner when there is no
// memory, or when the system knows at once that there will be none.
OwnedBuffer ZeroPages(size_t bytes);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ZERO_PAGES_H_
