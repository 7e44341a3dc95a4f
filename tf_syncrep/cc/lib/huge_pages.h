// Memory for large arrays that are written once and then read or given away.

#ifndef TF_SYNCREP_CC_LIB_HUGE_PAGES_H_
#define TF_SYNCREP_CC_LIB_HUGE_PAGES_H_

#include <cstddef>

namespace tf_syncrep {

// Asks the operating system to back [data, data + bytes), fresh memory of the
// heap, with huge pages if it can. Memory that is touched for the first time
// costs a page fault for every page; for an array of 100 MB these 25,000 faults
// take longer than filling it. Does nothing for small arrays, or on systems
// without such a request. The contents stay as they are.
void AdviseHugePages(void* data, size_t bytes);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_HUGE_PAGES_H_
