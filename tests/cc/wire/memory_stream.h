// Streams within a test: a pair of them, and what can befall bytes on the way.

#ifndef TF_SYNCREP_TESTS_CC_WIRE_MEMORY_STREAM_H_
#define TF_SYNCREP_TESTS_CC_WIRE_MEMORY_STREAM_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "tf_syncrep/cc/lib/wire/stream.h"

namespace tf_syncrep {
namespace wire {

// One direction.
class Pipe {
 public:
  explicit Pipe(size_t capacity) : capacity_(capacity) {}

  ssize_t Write(const iovec* parts, int num_parts, size_t at_most) {
    std::lock_guard<std::mutex> lock(mu_);
    if (is_over_) {
      return Stream::kOver;
    }
    ssize_t written = 0;
    for (int i = 0; i < num_parts; ++i) {
      const size_t part = std::min({parts[i].iov_len, capacity_ - bytes_.size(),
                                    at_most - static_cast<size_t>(written)});
      bytes_.append(static_cast<const char*>(parts[i].iov_base), part);
      written += static_cast<ssize_t>(part);
    }
    return written > 0 ? written : Stream::kNotNow;
  }

  ssize_t Read(const iovec* parts, int num_parts, size_t at_most) {
    std::lock_guard<std::mutex> lock(mu_);
    size_t read = 0;
    for (int i = 0; i < num_parts; ++i) {
      const size_t part =
          std::min({parts[i].iov_len, bytes_.size() - read, at_most - read});
      std::copy_n(bytes_.data() + read, part,
                  static_cast<char*>(parts[i].iov_base));
      read += part;
    }
    bytes_.erase(0, read);
    if (read > 0) {
      return static_cast<ssize_t>(read);
    }
    return is_over_ ? Stream::kOver : Stream::kNotNow;
  }

  // What was written can still be read.
  void End() {
    std::lock_guard<std::mutex> lock(mu_);
    is_over_ = true;
  }

 private:
  std::mutex mu_;
  const size_t capacity_;
  std::string bytes_;
  bool is_over_ = false;
};

class MemoryStream : public Stream {
 public:
  // With a seed, calls take pieces of random sizes; with zero, all there is.
  static std::pair<std::unique_ptr<MemoryStream>, std::unique_ptr<MemoryStream>>
  Pair(unsigned seed = 0, size_t capacity = 1 << 20) {
    auto there = std::make_shared<Pipe>(capacity);
    auto back = std::make_shared<Pipe>(capacity);
    return {
        std::make_unique<MemoryStream>(there, back, seed),
        std::make_unique<MemoryStream>(back, there, seed == 0 ? 0 : seed + 1)};
  }

  MemoryStream(std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in,
               unsigned seed)
      : out_(std::move(out)), in_(std::move(in)), random_(seed), seed_(seed) {}

  ssize_t Read(const iovec* parts, int num_parts) override {
    return in_->Read(parts, num_parts, Piece());
  }
  ssize_t Write(const iovec* parts, int num_parts) override {
    return out_->Write(parts, num_parts, Piece());
  }
  void Shutdown() override {
    out_->End();
    in_->End();
  }

 private:
  size_t Piece() {
    std::lock_guard<std::mutex> lock(mu_);
    return seed_ == 0 ? SIZE_MAX : 1 + random_() % (random_() % 3 ? 7 : 5000);
  }

  const std::shared_ptr<Pipe> out_;
  const std::shared_ptr<Pipe> in_;
  std::mutex mu_;
  std::mt19937 random_;
  const unsigned seed_;
};

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_TESTS_CC_WIRE_MEMORY_STREAM_H_
