// A connection between two tasks, on which both ask and answer.

#ifndef TF_SYNCREP_CC_LIB_WIRE_CONNECTION_H_
#define TF_SYNCREP_CC_LIB_WIRE_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/wire/frame.h"
#include "tf_syncrep/cc/lib/wire/frame_reader.h"
#include "tf_syncrep/cc/lib/wire/stream.h"

namespace tf_syncrep {
namespace wire {

// The bytes of a body that is sent. They are not copied: `owner` keeps them.
struct OutBody {
  const char* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;

  static OutBody Of(std::string text);
};

// How a request ended.
struct Answer {
  enum class How {
    kAnswered,   // by the other task
    kCancelled,  // by this one: see Connection::Cancel
    kLost,       // with the connection: whether it was done is not known
  };
  How how = How::kAnswered;
  // What the other task has answered: zero, or the code of an error.
  int code = 0;
  // What it has written, or why the connection was lost.
  std::string_view meta;
  std::unique_ptr<Body> body;
};

// Any thread may ask and answer. Frames come out of it on one thread, that of
// whoever calls OnReadable.
//
// Memory: a frame that the other task does not take is kept until the
// connection is lost. An answer keeps what the other task has asked for, once,
// and a request what a caller here waits for; nothing is sent that nobody asked
// for, so that a task which stops reading stops what is kept for it as well.
class Connection : public std::enable_shared_from_this<Connection>,
                   private FrameReader::Sink {
 public:
  // What a connection belongs to. No lock is held where these are called, but
  // for WantsToWrite.
  class Owner {
   public:
    virtual ~Owner() = default;
    // The other task's hello has come. Returns whether to go on with it.
    virtual bool OnHello(const std::shared_ptr<Connection>& connection,
                         const Hello& hello) = 0;
    // Makes memory for the body of a request. Null if there is none.
    virtual std::unique_ptr<Body> MakeBody(uint8_t method, uint64_t size) = 0;
    // Must answer it, once. Must not wait.
    virtual void OnRequest(const std::shared_ptr<Connection>& connection,
                           uint64_t id, uint8_t method, std::string_view meta,
                           std::unique_ptr<Body> body) = 0;
    // From now on OnWritable is to be called, or not, when the stream takes
    // bytes.
    virtual void WantsToWrite(Connection* connection, bool wants) = 0;
  };

  // Called once, without a lock held. Must not wait.
  using Done = std::function<void(Answer)>;
  // Makes memory for the body of an answer. Null if its meta is wrong, or there
  // is no memory: the connection is lost then.
  using MakeAnswerBody = std::function<std::unique_ptr<Body>(
      std::string_view meta, uint64_t size)>;

  // `dialled`: whether this end has made the connection. Owner and stream
  // outlive it.
  Connection(std::unique_ptr<Stream> stream, Owner* owner, bool dialled);

  // Sends a hello; the end that has dialled does so at once.
  void SendHello(const Hello& hello);

  // Asks the other task for something. `done` is called when it has answered,
  // or it was lost, or Cancel was called; at once if it is lost already.
  // Returns a number for Cancel.
  uint64_t Ask(uint8_t method, std::string_view meta, OutBody body,
               MakeAnswerBody make_body, Done done);

  // Ends a request as cancelled. If it is under way the other task is told,
  // which may not have begun, or may have answered; else it is not sent.
  void Cancel(uint64_t id);

  // Tells the other task that the answer is of no use any more, and waits for
  // it all the same: what was begun there has ended by then. A request that is
  // not under way ends as cancelled, and is not sent. Returns whether it still
  // waits.
  bool Stop(uint64_t id);

  // Answers a request.
  void Answer(uint64_t id, int code, std::string_view meta, OutBody body);

  // `cancel` is called when the other task does not wait for this answer any
  // more, at once if that is so already, and then not after the answer. To be
  // called before the answer is given.
  void SetCancel(uint64_t id, std::function<void()> cancel);

  // For the thread that watches the stream: both return false if it is over;
  // then End must be called.
  bool OnReadable();
  bool OnWritable();

  // The stream is over soon, and whoever watches it will see that.
  void Shutdown();

  // Ends all that waits for the other task, and all that it waits for.
  void End(std::string_view reason);

  bool dialled() const { return dialled_; }
  // For the same thread: whether the other end has sent anything.
  bool has_heard() const { return reader_.has_read(); }
  // What the other end is, after its hello.
  const Hello& peer() const { return peer_; }
  Stream* stream() const { return stream_.get(); }

 private:
  struct OutFrame {
    uint64_t request;   // its id, if it is one
    std::string front;  // head and meta
    OutBody body;
    size_t sent = 0;
    size_t size() const { return front.size() + body.size; }
  };
  struct Waiting {
    MakeAnswerBody make_body;
    Done done;
  };
  struct Served {
    std::function<void()> cancel;
    bool is_cancelled = false;
  };

  bool MakeBody(const Head& head, std::string_view meta,
                std::unique_ptr<Body>* body) override;
  bool Deliver(const Head& head, std::string_view meta,
               std::unique_ptr<Body> body) override;
  void CancelServed(uint64_t id);

  // Takes a request back of which nothing was written. Returns false if it is
  // not there.
  bool Unsend(uint64_t id);
  // Returns false if the connection is lost.
  bool Send(const Head& head, std::string_view meta, OutBody body);
  // Writes what the stream takes. Returns false if it is over.
  bool Flush() TF_SYNCREP_REQUIRES(write_mu_);
  // Takes a request out of the table. Its `done` is empty if it was not there.
  Waiting Take(uint64_t id);

  const std::unique_ptr<Stream> stream_;
  Owner* const owner_;
  const bool dialled_;
  // Of the thread that reads.
  FrameReader reader_;
  bool has_hello_ = false;
  Hello peer_;

  // Guards what is to be written. Bytes are given to the stream under it, which
  // does not wait.
  Mutex write_mu_;
  std::deque<OutFrame> queue_ TF_SYNCREP_GUARDED_BY(write_mu_);
  // Whether OnWritable will be called.
  bool is_watched_ TF_SYNCREP_GUARDED_BY(write_mu_) = false;
  bool is_over_ TF_SYNCREP_GUARDED_BY(write_mu_) = false;

  // Guards who waits for what. Never held while anything is called.
  Mutex mu_;
  bool has_ended_ TF_SYNCREP_GUARDED_BY(mu_) = false;
  std::string why_ TF_SYNCREP_GUARDED_BY(mu_);
  uint64_t last_id_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  std::unordered_map<uint64_t, Waiting> waiting_ TF_SYNCREP_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, Served> served_ TF_SYNCREP_GUARDED_BY(mu_);
};

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_WIRE_CONNECTION_H_
