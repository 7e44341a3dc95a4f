#include "tf_syncrep/cc/lib/wire/connection.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tf_syncrep {
namespace wire {
namespace {

constexpr int kMostParts = 32;

}  // namespace

OutBody OutBody::Of(std::string text) {
  auto owner = std::make_shared<const std::string>(std::move(text));
  return {owner->data(), owner->size(), owner};
}

Connection::Connection(std::unique_ptr<Stream> stream, Owner* owner,
                       bool dialled)
    : stream_(std::move(stream)),
      owner_(owner),
      dialled_(dialled),
      reader_(/*expects_preface=*/!dialled) {
  if (dialled) {
    MutexLock lock(write_mu_);
    queue_.push_back({0, std::string(kPreface), {}});  // goes with the hello
  }
}

void Connection::SendHello(const Hello& hello) {
  Send({Kind::kHello}, WriteHello(hello), {});
}

uint64_t Connection::Ask(uint8_t method, std::string_view meta, OutBody body,
                         MakeAnswerBody make_body, Done done) {
  uint64_t id = 0;
  {
    MutexLock lock(mu_);
    if (!has_ended_) {
      id = ++last_id_;
      Waiting& waiting = waiting_[id];
      waiting.make_body.swap(make_body);
      waiting.done.swap(done);
    }
  }
  if (id == 0) {
    done({Answer::How::kLost, 0, "the connection is lost", nullptr});
    return 0;
  }
  // If this fails, whoever watches the stream ends the request.
  Send({Kind::kRequest, method, 0, id}, meta, std::move(body));
  return id;
}

void Connection::Cancel(uint64_t id) {
  Waiting waiting = Take(id);
  if (waiting.done == nullptr) {
    return;
  }
  if (!Unsend(id)) {
    Send({Kind::kCancel, 0, 0, id}, {}, {});
  }
  waiting.done({Answer::How::kCancelled, 0, "", nullptr});
}

bool Connection::Stop(uint64_t id) {
  {
    MutexLock lock(mu_);
    if (waiting_.count(id) == 0) {
      return false;
    }
  }
  if (!Unsend(id)) {
    Send({Kind::kCancel, 0, 0, id}, {}, {});
    return true;
  }
  const Waiting waiting = Take(id);
  if (waiting.done != nullptr) {
    waiting.done({Answer::How::kCancelled, 0, "", nullptr});
  }
  return false;
}

void Connection::Answer(uint64_t id, int code, std::string_view meta,
                        OutBody body) {
  {
    MutexLock lock(mu_);
    served_.erase(id);
  }
  Send({Kind::kAnswer, static_cast<uint8_t>(code), 0, id}, meta,
       std::move(body));
}

void Connection::SetCancel(uint64_t id, std::function<void()> cancel) {
  {
    MutexLock lock(mu_);
    const auto served = served_.find(id);
    if (served != served_.end() && !served->second.is_cancelled) {
      served->second.cancel = std::move(cancel);
      return;
    }
  }
  cancel();
}

bool Connection::OnReadable() { return reader_.ReadFrom(stream_.get(), this); }

bool Connection::OnWritable() {
  MutexLock lock(write_mu_);
  if (is_over_ || !Flush()) {
    is_over_ = true;
    return false;
  }
  if (queue_.empty() && is_watched_) {
    is_watched_ = false;
    owner_->WantsToWrite(this, false);
  }
  return true;
}

void Connection::Shutdown() { stream_->Shutdown(); }

void Connection::End(std::string_view reason) {
  stream_->Shutdown();
  std::deque<OutFrame> queue;
  {
    MutexLock lock(write_mu_);
    is_over_ = true;
    queue.swap(queue_);
  }
  std::unordered_map<uint64_t, Waiting> waiting;
  std::unordered_map<uint64_t, Served> served;
  {
    MutexLock lock(mu_);
    has_ended_ = true;
    waiting.swap(waiting_);
    served.swap(served_);
  }
  for (auto& [id, request] : waiting) {
    request.done({Answer::How::kLost, 0, reason, nullptr});
  }
  for (auto& [id, request] : served) {
    if (request.cancel != nullptr) {
      request.cancel();
    }
  }
}

bool Connection::MakeBody(const Head& head, std::string_view meta,
                          std::unique_ptr<Body>* body) {
  if (!has_hello_) {
    return false;
  }
  if (head.kind == Kind::kRequest) {
    *body = owner_->MakeBody(head.code, head.body_size);
    return *body != nullptr;
  }
  if (head.kind != Kind::kAnswer) {
    return false;
  }
  MakeAnswerBody make_body;
  {
    MutexLock lock(mu_);
    const auto waiting = waiting_.find(head.id);
    if (waiting == waiting_.end()) {
      return true;  // It was cancelled: the bytes are skipped.
    }
    make_body = waiting->second.make_body;
  }
  *body = make_body(meta, head.body_size);
  return *body != nullptr;
}

bool Connection::Deliver(const Head& head, std::string_view meta,
                         std::unique_ptr<Body> body) {
  if (head.kind == Kind::kHello) {
    auto hello = ReadHello(meta);
    if (has_hello_ || !hello) {
      return false;
    }
    has_hello_ = true;
    peer_ = *std::move(hello);
    return owner_->OnHello(shared_from_this(), peer_);
  }
  if (!has_hello_) {
    return false;
  }
  switch (head.kind) {
    case Kind::kRequest: {
      {
        MutexLock lock(mu_);
        if (!served_.emplace(head.id, Served{}).second) {
          return false;
        }
      }
      owner_->OnRequest(shared_from_this(), head.id, head.code, meta,
                        std::move(body));
      return true;
    }
    case Kind::kAnswer: {
      Waiting waiting = Take(head.id);
      if (waiting.done != nullptr) {
        waiting.done(
            {Answer::How::kAnswered, head.code, meta, std::move(body)});
      }
      return true;
    }
    case Kind::kCancel:
      CancelServed(head.id);
      return true;
    default:
      return false;
  }
}

void Connection::CancelServed(uint64_t id) {
  std::function<void()> cancel;
  {
    MutexLock lock(mu_);
    const auto served = served_.find(id);
    if (served == served_.end()) {
      return;
    }
    served->second.is_cancelled = true;
    cancel = std::move(served->second.cancel);
    served->second.cancel = nullptr;
  }
  if (cancel != nullptr) {
    cancel();
  }
}

Connection::Waiting Connection::Take(uint64_t id) {
  Waiting waiting;
  MutexLock lock(mu_);
  const auto found = waiting_.find(id);
  if (found != waiting_.end()) {
    waiting = std::move(found->second);
    waiting_.erase(found);
  }
  return waiting;
}

bool Connection::Unsend(uint64_t id) {
  OutFrame frame;  // Its body is given back without a lock.
  MutexLock lock(write_mu_);
  const auto found = std::find_if(
      queue_.begin(), queue_.end(),
      [id](const OutFrame& one) { return one.request == id && one.sent == 0; });
  if (found == queue_.end()) {
    return false;
  }
  frame = std::move(*found);
  queue_.erase(found);
  return true;
}

bool Connection::Send(const Head& head, std::string_view meta, OutBody body) {
  Head whole = head;
  meta = meta.substr(0, kMaxMeta);
  whole.meta_size = static_cast<uint32_t>(meta.size());
  whole.body_size = body.size;
  OutFrame frame;
  frame.request = head.kind == Kind::kRequest ? head.id : 0;
  frame.front.resize(kHeadSize + meta.size());
  WriteHead(whole, frame.front.data());
  meta.copy(frame.front.data() + kHeadSize, meta.size());
  frame.body = std::move(body);

  MutexLock lock(write_mu_);
  if (is_over_) {
    return false;
  }
  queue_.push_back(std::move(frame));
  if (is_watched_) {
    return true;
  }
  if (!Flush()) {
    is_over_ = true;
    stream_->Shutdown();  // Whoever watches it sees that, and calls End.
    return false;
  }
  if (!queue_.empty()) {
    is_watched_ = true;
    owner_->WantsToWrite(this, true);
  }
  return true;
}

bool Connection::Flush() {
  while (!queue_.empty()) {
    std::array<iovec, kMostParts> parts;
    int num_parts = 0;
    for (auto frame = queue_.begin();
         frame != queue_.end() && num_parts + 2 <= kMostParts; ++frame) {
      const size_t in_front = std::min(frame->sent, frame->front.size());
      if (in_front < frame->front.size()) {
        parts[num_parts++] = {frame->front.data() + in_front,
                              frame->front.size() - in_front};
      }
      const size_t in_body = frame->sent - in_front;
      if (in_body < frame->body.size) {
        parts[num_parts++] = {const_cast<char*>(frame->body.data) + in_body,
                              frame->body.size - in_body};
      }
    }
    ssize_t written = stream_->Write(parts.data(), num_parts);
    if (written == Stream::kNotNow) {
      return true;
    }
    if (written == Stream::kOver) {
      return false;
    }
    while (written > 0) {
      OutFrame& first = queue_.front();
      const auto part = std::min<size_t>(written, first.size() - first.sent);
      first.sent += part;
      written -= static_cast<ssize_t>(part);
      if (first.sent == first.size()) {
        queue_.pop_front();
      }
    }
  }
  return true;
}

}  // namespace wire
}  // namespace tf_syncrep
