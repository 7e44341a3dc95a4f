// The eager service's calls to other tasks.

#ifndef TF_SYNCREP_CC_WIRE_EAGER_CLIENT_H_
#define TF_SYNCREP_CC_WIRE_EAGER_CLIENT_H_

#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "tensorflow/core/distributed_runtime/eager/eager_client.h"
#include "tensorflow/core/platform/refcount.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/wire/calls.h"

namespace tf_syncrep {
namespace wire {

// Clients whose calls go over the wire, and nowhere else: the context of a call
// is in the service of the wire, or in gRPC's.
class WireEagerClients : public tensorflow::eager::EagerClientCache {
 public:
  explicit WireEagerClients(const Local& local) : local_(local) {}
  absl::Status GetClient(
      const std::string& target,
      tensorflow::core::RefCountPtr<tensorflow::eager::EagerClient>* client)
      override;

 private:
  const Local local_;
  Mutex mu_;
  std::unordered_map<std::string, tensorflow::core::RefCountPtr<
                                      tensorflow::eager::EagerClient>>
      clients_ TF_SYNCREP_GUARDED_BY(mu_);
};

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_WIRE_EAGER_CLIENT_H_
