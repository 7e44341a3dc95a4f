// Connections by TCP, watched by a thread.

#ifndef TF_SYNCREP_CC_LIB_WIRE_SOCKET_NETWORK_H_
#define TF_SYNCREP_CC_LIB_WIRE_SOCKET_NETWORK_H_

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/wire/connection.h"
#include "tf_syncrep/cc/lib/wire/hub.h"
#include "tf_syncrep/cc/lib/wire/stream.h"

namespace tf_syncrep {
namespace wire {

// A stream of a connected socket, which does not block. Owns it.
class SocketStream : public Stream {
 public:
  explicit SocketStream(int socket);
  ~SocketStream() override;
  ssize_t Read(const iovec* parts, int num_parts) override;
  ssize_t Write(const iovec* parts, int num_parts) override;
  void Shutdown() override;
  int socket() const { return socket_; }

 private:
  const int socket_;
};

// Dials each on a thread of its own, which ends, since to look up a name may
// take long; and watches all on one, which never ends. So it is never
// destroyed.
class SocketNetwork : public Hub::Network {
 public:
  // Null if the system has no descriptors for it.
  static SocketNetwork* Make();

  // Starts to watch, for a hub that is never destroyed. Returns false if there
  // is no thread. To be called once, before anything is watched.
  [[nodiscard]] bool Start(Hub* hub);

  // `address`: HOST:PORT, or [HOST]:PORT.
  void Dial(const std::string& address, Dialled dialled) override;
  bool Watch(const Hub::ConnectionPtr& connection) override;
  void WantsToWrite(Connection* connection, bool wants) override;
  void Post(std::function<void()> run) override;

 private:
  SocketNetwork(int epoll, int bell) : epoll_(epoll), bell_(bell) {}

  [[noreturn]] void Run(Hub* hub);
  void RunPosted();
  void Handle(Hub* hub, Connection* connection, unsigned events);

  const int epoll_;
  // An eventfd: written when something is new for the thread.
  const int bell_;
  // Guards what keeps connections alive while they are watched, and what was
  // posted. Nothing is called while it is held.
  Mutex mu_;
  std::vector<std::function<void()>> posted_ TF_SYNCREP_GUARDED_BY(mu_);
  std::unordered_map<Connection*, Hub::ConnectionPtr> watched_
      TF_SYNCREP_GUARDED_BY(mu_);
};

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_WIRE_SOCKET_NETWORK_H_
