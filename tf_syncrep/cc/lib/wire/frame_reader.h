// Makes frames of bytes as they come.

#ifndef TF_SYNCREP_CC_LIB_WIRE_FRAME_READER_H_
#define TF_SYNCREP_CC_LIB_WIRE_FRAME_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tf_syncrep/cc/lib/wire/frame.h"
#include "tf_syncrep/cc/lib/wire/stream.h"

namespace tf_syncrep {
namespace wire {

// Memory for the body of a frame.
class Body {
 public:
  virtual ~Body() = default;
  virtual char* data() = 0;
};

// The body of a call: a message of a few bytes, or of many.
class TextBody : public Body {
 public:
  explicit TextBody(size_t size) : text_(size, '\0') {}
  char* data() override { return text_.data(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Reads a stream. Bodies are read to where they are to lie; only what comes in
// the same piece as a head is copied.
class FrameReader {
 public:
  // What becomes of frames.
  class Sink {
   public:
    virtual ~Sink() = default;

    // Called when a head and its meta are there, and a body will come. Sets
    // `body`, or leaves it null: then the bytes are skipped. Returns false if
    // there is no such frame, or no memory for it.
    virtual bool MakeBody(const Head& head, std::string_view meta,
                          std::unique_ptr<Body>* body) = 0;

    // Called when a frame is complete. Returns false if there is no such frame.
    virtual bool Deliver(const Head& head, std::string_view meta,
                         std::unique_ptr<Body> body) = 0;
  };

  // Connections that were accepted begin with the preface.
  explicit FrameReader(bool expects_preface);

  // Reads what is there, in a few calls of Read: a stream from which bytes
  // always come is left for others, and read again later. Returns false if the
  // stream is over or has bytes that are no frames: nothing can be read from it
  // any more.
  bool ReadFrom(Stream* stream, Sink* sink);

  // Whether a byte has come, of whatever kind.
  bool has_read() const { return has_read_; }

 private:
  // Makes frames of what is in the buffer.
  bool Parse(Sink* sink);
  bool EndFrame(Sink* sink);

  // What was read, and is no part of a body that lies elsewhere.
  std::unique_ptr<char[]> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;

  bool expects_preface_;
  bool has_read_ = false;
  // The frame whose body is being read, if `remaining_` is not zero.
  Head head_;
  std::string meta_;
  std::unique_ptr<Body> body_;
  uint64_t body_read_ = 0;
  uint64_t remaining_ = 0;
};

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_WIRE_FRAME_READER_H_
