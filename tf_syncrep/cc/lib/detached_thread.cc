#include "tf_syncrep/cc/lib/detached_thread.h"

#include <pthread.h>

#include <exception>
#include <thread>
#include <utility>

namespace tf_syncrep {

bool StartDetachedThread(const char* name, std::function<void()> run) {
  try {
    std::thread([name, run = std::move(run)] {
      pthread_setname_np(pthread_self(), name);
      run();
    }).detach();
  } catch (const std::exception&) {  // std::system_error or std::bad_alloc
    return false;
  }
  return true;
}

}  // namespace tf_syncrep
