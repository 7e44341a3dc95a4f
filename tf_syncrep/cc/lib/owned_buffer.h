// Memory that somebody keeps alive.

#ifndef TF_SYNCREP_CC_LIB_OWNED_BUFFER_H_
#define TF_SYNCREP_CC_LIB_OWNED_BUFFER_H_

#include <memory>

namespace tf_syncrep {

// Memory, and what keeps it alive. An argument without an owner belongs to the
// caller, for the time of the call; a result without one means that there was
// no memory.
struct OwnedBuffer {
  void* data = nullptr;
  std::shared_ptr<void> owner;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_OWNED_BUFFER_H_
