// Memory that somebody keeps alive.

#ifndef TF_SYNCREP_CC_LIB_OWNED_BUFFER_H_
#define TF_SYNCREP_CC_LIB_OWNED_BUFFER_H_

#include <memory>

namespace tf_syncrep {

// Memory, and what keeps it alive. As an argument without an owner it is the
// caller's, for the time of the call; as a result without one there was none.
struct OwnedBuffer {
  void* data = nullptr;
  std::shared_ptr<void> owner;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_OWNED_BUFFER_H_
