// The connections of a task to all others.

#ifndef TF_SYNCREP_CC_LIB_WIRE_HUB_H_
#define TF_SYNCREP_CC_LIB_WIRE_HUB_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/wire/connection.h"
#include "tf_syncrep/cc/lib/wire/frame.h"
#include "tf_syncrep/cc/lib/wire/stream.h"

namespace tf_syncrep {
namespace wire {

// A task dials another one when it first has something for it. Both use a
// connection for what they have, whoever has dialled, and each has one or two.
// There is none with a task that does not answer with a hello of the same
// version: it has no wire, or another one, and is tried again now and then.
class Hub : private Connection::Owner {
 public:
  using Time = std::chrono::nanoseconds;
  using ConnectionPtr = std::shared_ptr<Connection>;
  // Without a connection, whether the task has answered all the same: it has no
  // wire then. One that is not there yet may have one.
  using Found = std::function<void(ConnectionPtr, bool has_answered)>;

  // How long a dialled task may take to accept, and then to say hello; and how
  // long none of the tasks may.
  static constexpr Time kPatience = std::chrono::seconds(10);
  // How long a task that has no wire is left alone: at first, and at most.
  static constexpr Time kFirstPause = std::chrono::seconds(1);
  static constexpr Time kLastPause = std::chrono::seconds(60);
  // How long a request that is stopped may take to end.
  static constexpr Time kStopPatience = std::chrono::seconds(2);

  // Makes streams and watches them.
  class Network {
   public:
    // With no stream, the reason.
    using Dialled =
        std::function<void(std::unique_ptr<Stream> stream, std::string reason)>;

    virtual ~Network() = default;
    // Calls `dialled` once, soon, on any thread, perhaps before it returns.
    virtual void Dial(const std::string& address, Dialled dialled) = 0;
    // From now on calls OnReadable and OnWritable, and Hub::OnOver after one
    // has returned false; nothing afterwards. Returns false if the system
    // cannot watch it: then none of these is called.
    [[nodiscard]] virtual bool Watch(const ConnectionPtr& connection) = 0;
    virtual void WantsToWrite(Connection* connection, bool wants) = 0;
    // Calls `run` soon on the thread that watches.
    virtual void Post(std::function<void()> run) = 0;
  };

  // What is asked of this task: see Connection::Owner.
  class Server {
   public:
    virtual ~Server() = default;
    virtual std::unique_ptr<Body> MakeBody(uint8_t method, uint64_t size) = 0;
    virtual void OnRequest(const ConnectionPtr& connection, uint64_t id,
                           uint8_t method, std::string_view meta,
                           std::unique_ptr<Body> body) = 0;
  };

  // Tells of a task that there is a wire to it, or why there is none.
  using Sayer =
      std::function<void(const std::string& task, const std::string& what)>;

  // `self`: what this task says of itself; its `to` is not used. `now`: a clock
  // that does not go back. All of these outlive the hub.
  Hub(Hello self, Server* server, Network* network, std::function<Time()> now,
      Sayer say);

  // Where a task can be dialled.
  void SetAddress(const std::string& task, const std::string& address)
      TF_SYNCREP_EXCLUDES(mu_);

  // Returns the connection to a task, or null if there is none now. Then it
  // dials, unless it has done so not long ago.
  ConnectionPtr Find(const std::string& task) TF_SYNCREP_EXCLUDES(mu_);

  // Whether it is worth waiting for a connection to a task. It is not, for a
  // while, once it has answered without a wire.
  bool MayHaveWire(const std::string& task) TF_SYNCREP_EXCLUDES(mu_);

  // Calls `found` with the connection to a task, or null, when that is known:
  // when its name was looked up, at the latest after `kPatience` for each of
  // its addresses, and once more for its hello.
  void Await(const std::string& task, Found found) TF_SYNCREP_EXCLUDES(mu_);

  // Ends a request as cancelled, for callers that hold locks which its `done`
  // takes: soon, whatever the threads of the program wait for.
  void CancelSoon(ConnectionPtr connection, uint64_t id);

  // Does the same as Connection::Stop, and ends the request as cancelled if it
  // has not ended after kStopPatience.
  void StopSoon(ConnectionPtr connection, uint64_t id) TF_SYNCREP_EXCLUDES(mu_);

  // A stream of somebody who has dialled this task.
  void Accept(std::unique_ptr<Stream> stream) TF_SYNCREP_EXCLUDES(mu_);

  // A connection is over.
  void OnOver(const ConnectionPtr& connection) TF_SYNCREP_EXCLUDES(mu_);

  // Shuts down connections that had no hello for too long, and ends requests
  // that were to stop. Returns when to call it again, or Time::max() if that is
  // not before the next of either.
  Time Poll() TF_SYNCREP_EXCLUDES(mu_);

 private:
  struct Peer {
    std::string address;
    ConnectionPtr connection;  // after its hello
    bool is_dialling = false;  // until the hello
    Time pause{};
    Time tried_until{};        // Find does not dial before
    bool has_no_wire = false;  // as it has answered, until then
    std::vector<Found> awaited;
    std::string said;
  };
  struct Greeting {
    std::string task;  // empty if it has dialled
    Time until;
  };
  struct Stopping {
    ConnectionPtr connection;
    uint64_t id;
    Time until;
  };

  bool OnHello(const ConnectionPtr& connection, const Hello& hello) override;
  std::unique_ptr<Body> MakeBody(uint8_t method, uint64_t size) override {
    return server_->MakeBody(method, size);
  }
  void OnRequest(const ConnectionPtr& connection, uint64_t id, uint8_t method,
                 std::string_view meta, std::unique_ptr<Body> body) override {
    server_->OnRequest(connection, id, method, meta, std::move(body));
  }
  void WantsToWrite(Connection* connection, bool wants) override {
    network_->WantsToWrite(connection, wants);
  }

  void Dial(const std::string& task, const std::string& address);
  // Waits for the hello of a task that was dialled, or of whoever has dialled.
  void Greet(const ConnectionPtr& connection, const std::string& dialled)
      TF_SYNCREP_EXCLUDES(mu_);
  // Dialling has come to its end: without a connection for `reason`, if it is
  // not empty.
  void EndDialling(const std::string& task, const std::string& reason,
                   bool has_answered) TF_SYNCREP_EXCLUDES(mu_);
  // Says it if it is something new.
  void Say(const std::string& task, const std::string& what)
      TF_SYNCREP_EXCLUDES(mu_);

  const Hello self_;
  Server* const server_;
  Network* const network_;
  const std::function<Time()> now_;
  const Sayer say_;

  // Guards the fields below. Nothing is called while it is held.
  Mutex mu_;
  std::unordered_map<std::string, Peer> peers_ TF_SYNCREP_GUARDED_BY(mu_);
  // Connections without a hello.
  std::unordered_map<ConnectionPtr, Greeting> greetings_
      TF_SYNCREP_GUARDED_BY(mu_);
  // In the order of their ends. Some may have ended.
  std::deque<Stopping> stopping_ TF_SYNCREP_GUARDED_BY(mu_);
};

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_WIRE_HUB_H_
