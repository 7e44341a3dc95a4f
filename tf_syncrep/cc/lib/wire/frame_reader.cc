#include "tf_syncrep/cc/lib/wire/frame_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace tf_syncrep {
namespace wire {
namespace {

// Holds a head with the longest meta.
constexpr size_t kBuffer = 2 * (kMaxMeta + kHeadSize);
// How many bytes of a body are read at once, which is also how long one stream
// keeps the others waiting.
constexpr uint64_t kMostAtOnce = 4 << 20;
constexpr int kReadsAtOnce = 8;

}  // namespace

FrameReader::FrameReader(bool expects_preface)
    : buffer_(new char[kBuffer]), expects_preface_(expects_preface) {}

bool FrameReader::ReadFrom(Stream* stream, Sink* sink) {
  for (int i = 0; i < kReadsAtOnce; ++i) {
    std::array<iovec, 2> parts;
    int num_parts = 0;
    uint64_t wanted = 0;
    uint64_t room = 0;
    if (remaining_ > 0 && body_ != nullptr) {
      wanted = std::min(remaining_, kMostAtOnce);
      parts[num_parts++] = {body_->data() + body_read_, wanted};
    }
    // What is behind the body, too, if this is its end: a read is saved.
    if (wanted == remaining_ || body_ == nullptr) {
      if (begin_ > 0) {
        std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
      }
      room = kBuffer - end_;
      parts[num_parts++] = {buffer_.get() + end_, room};
    }
    const ssize_t read = stream->Read(parts.data(), num_parts);
    if (read == Stream::kNotNow) {
      return true;
    }
    if (read == Stream::kOver) {
      return false;
    }
    has_read_ = true;
    const uint64_t of_body = std::min<uint64_t>(read, wanted);
    body_read_ += of_body;
    remaining_ -= of_body;
    end_ += read - of_body;
    if (of_body > 0 && remaining_ == 0 && !EndFrame(sink)) {
      return false;
    }
    if (!Parse(sink)) {
      return false;
    }
    if (static_cast<uint64_t>(read) < wanted + room) {
      return true;  // That was all: another read would find nothing.
    }
  }
  return true;
}

bool FrameReader::Parse(Sink* sink) {
  if (expects_preface_) {
    const size_t size = std::min(end_ - begin_, kPreface.size());
    if (std::memcmp(buffer_.get() + begin_, kPreface.data(), size) != 0) {
      return false;
    }
    if (size < kPreface.size()) {
      return true;
    }
    begin_ += size;
    expects_preface_ = false;
  }
  while (true) {
    if (remaining_ > 0) {
      const uint64_t there = std::min<uint64_t>(end_ - begin_, remaining_);
      if (body_ != nullptr) {
        std::memcpy(body_->data() + body_read_, buffer_.get() + begin_, there);
      }
      begin_ += there;
      body_read_ += there;
      remaining_ -= there;
      if (remaining_ > 0) {
        return true;
      }
      if (!EndFrame(sink)) {
        return false;
      }
    }
    if (end_ - begin_ < kHeadSize) {
      return true;
    }
    const auto head = ReadHead(buffer_.get() + begin_);
    if (!head) {
      return false;
    }
    if (end_ - begin_ < kHeadSize + head->meta_size) {
      return true;
    }
    head_ = *head;
    meta_.assign(buffer_.get() + begin_ + kHeadSize, head_.meta_size);
    begin_ += kHeadSize + head_.meta_size;
    body_read_ = 0;
    remaining_ = head_.body_size;
    if (remaining_ == 0) {
      if (!EndFrame(sink)) {
        return false;
      }
    } else if (!sink->MakeBody(head_, meta_, &body_)) {
      return false;
    }
  }
}

bool FrameReader::EndFrame(Sink* sink) {
  return sink->Deliver(head_, meta_, std::move(body_));
}

}  // namespace wire
}  // namespace tf_syncrep
