// A thread that nobody joins.

#ifndef TF_SYNCREP_CC_LIB_DETACHED_THREAD_H_
#define TF_SYNCREP_CC_LIB_DETACHED_THREAD_H_

#include <functional>

namespace tf_syncrep {

// Starts a thread, which `top -H` and /proc call `name`, of 15 characters at
// most. Returns false where the system has no thread or no memory for one:
// std::thread throws then, and nobody catches that.
[[nodiscard]] bool StartDetachedThread(const char* name,
                                       std::function<void()> run);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_DETACHED_THREAD_H_
