// Memory with an owner.

#ifndef TF_SYNCREP_CC_LIB_OWNED_BUFFER_H_
#define TF_SYNCREP_CC_LIB_OWNED_BUFFER_H_

#include <memory>

namespace tf_syncrep {

// Memory, and the owner that keeps it alive. An argument without an owner
// belongs to the caller, and is valid during the call. A result without an
// owner means that there was no memory.
struct OwnedBuffer {
  void* data = nullptr;
  std::shared_ptr<void> owner;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_OWNED_BUFFER_H_
