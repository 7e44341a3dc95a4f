// A connection gets bytes of anybody: frames as they should be, frames that are
// changed or cut off, and what is none. It may end, and nothing else may
// happen: what is asked of it is what was in whole frames, and each of its own
// requests ends once.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "gtest/gtest.h"
#include "tests/cc/fuzz_input.h"
#include "tests/cc/wire/memory_stream.h"
#include "tf_syncrep/cc/lib/wire/connection.h"
#include "tf_syncrep/cc/lib/wire/frame.h"

namespace tf_syncrep {
namespace wire {
namespace {

class WireFuzz : public Connection::Owner {
 public:
  explicit WireFuzz(FuzzInput* input) : input_(*input) {
    auto [stranger, own] = MemoryStream::Pair(/*seed=*/1 + input_.Pick(200));
    stranger_ = std::move(stranger);
    connection_ = std::make_shared<Connection>(std::move(own), this,
                                               /*dialled=*/input_.Pick(2) == 0);
  }

  void Run() {
    Begin();
    while (!input_.is_over() && !is_over_) {
      if (input_.Pick(4) == 0) {
        Ask();
      }
      Write(Piece());
    }
    connection_->End("the end");
    EXPECT_EQ(num_ended_, num_asked_) << "each request ends, once";
  }

  bool OnHello(const std::shared_ptr<Connection>&, const Hello&) override {
    EXPECT_EQ(++num_hellos_, 1) << "a connection has one hello";
    return input_.Pick(8) != 0;
  }
  std::unique_ptr<Body> MakeBody(uint8_t, uint64_t size) override {
    return size > 1'000'000 ? nullptr : std::make_unique<TextBody>(size);
  }
  void OnRequest(const std::shared_ptr<Connection>& connection, uint64_t id,
                 uint8_t, std::string_view meta,
                 std::unique_ptr<Body> body) override {
    EXPECT_EQ(num_hellos_, 1) << "nothing is asked before a hello";
    if (input_.Pick(2) == 0) {
      connection->SetCancel(id, [] {});
    }
    if (input_.Pick(4) != 0) {
      connection->Answer(
          id, input_.Pick(17), meta,
          body == nullptr ? OutBody()
                          : OutBody::Of(static_cast<TextBody&>(*body).text()));
    }
  }
  void WantsToWrite(Connection*, bool) override {}

 private:
  // As a task begins, most of the time.
  void Begin() {
    if (!connection_->dialled() && input_.Pick(8) != 0) {
      Write(std::string(kPreface));
    }
    if (input_.Pick(8) != 0) {
      Write(Frame(Kind::kHello, 0, WriteHello({"1", "a", "b", 1}), ""));
    }
  }

  void Ask() {
    ++num_asked_;
    const uint64_t id = connection_->Ask(
        1, "meta", {},
        [this](std::string_view, uint64_t size) { return MakeBody(0, size); },
        [this](Answer) { ++num_ended_; });
    if (input_.Pick(4) == 0) {
      connection_->Cancel(id);
    }
  }

  static std::string Frame(Kind kind, uint64_t id, const std::string& meta,
                           const std::string& body) {
    std::string bytes(kHeadSize, '\0');
    WriteHead({kind, 1, static_cast<uint32_t>(meta.size()), id, body.size()},
              bytes.data());
    return bytes + meta + body;
  }

  std::string Piece() {
    std::string piece;
    if (input_.Pick(8) == 0) {
      for (int i = input_.Pick(64); i >= 0; --i) {
        piece.push_back(input_.Get<char>());
      }
      return piece;
    }
    const int size = input_.Pick(100);
    piece = Frame(static_cast<Kind>(2 + input_.Pick(3)), 1 + input_.Pick(6),
                  std::string(input_.Pick(20), 'm'), std::string(size, 'b'));
    switch (input_.Pick(16)) {
      case 0:
        piece.resize(input_.Pick(256) % piece.size());
        break;
      case 1:
        piece[input_.Pick(256) % piece.size()] = input_.Get<char>();
        break;
      case 2: {  // sizes at the ends of their ranges
        Head head{Kind::kRequest, 1, 0, 9,
                  static_cast<uint64_t>(input_.Number())};
        WriteHead(head, piece.data());
        break;
      }
      default:
        break;
    }
    return piece;
  }

  void Write(const std::string& bytes) {
    size_t written = 0;
    while (written < bytes.size() && !is_over_) {
      const iovec part{const_cast<char*>(bytes.data()) + written,
                       bytes.size() - written};
      const ssize_t more = stranger_->Write(&part, 1);
      written += more > 0 ? more : 0;
      is_over_ = more == Stream::kOver || !connection_->OnReadable();
      // What is answered is read, and of no interest.
      char answer[4096];
      const iovec read{answer, sizeof answer};
      stranger_->Read(&read, 1);
    }
  }

  FuzzInput& input_;
  std::unique_ptr<MemoryStream> stranger_;
  std::shared_ptr<Connection> connection_;
  bool is_over_ = false;
  int num_hellos_ = 0;
  int num_asked_ = 0;
  int num_ended_ = 0;
};

TEST(WireFuzz, BytesOfAnybodyEndAConnectionAtMost) {
  RunSeeds([](FuzzInput* input) { WireFuzz(input).Run(); });
}

}  // namespace
}  // namespace wire
}  // namespace tf_syncrep
