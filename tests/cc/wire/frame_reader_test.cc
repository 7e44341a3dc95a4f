// Frames as they come: in pieces, cut off, and what are no frames.

#include "tf_syncrep/cc/lib/wire/frame_reader.h"

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/wire/memory_stream.h"
#include "tf_syncrep/cc/lib/wire/frame.h"

namespace tf_syncrep {
namespace wire {
namespace {

struct Frame {
  Head head;
  std::string meta;
  std::string body;
};

// Keeps frames. Bodies of requests of method 9 are not wanted.
class Kept : public FrameReader::Sink {
 public:
  bool MakeBody(const Head& head, std::string_view,
                std::unique_ptr<Body>* body) override {
    if (head.body_size > kMost) {
      return false;
    }
    if (head.code != 9) {
      *body = std::make_unique<TextBody>(head.body_size);
    }
    return true;
  }
  bool Deliver(const Head& head, std::string_view meta,
               std::unique_ptr<Body> body) override {
    frames.push_back(
        {head, std::string(meta),
         body == nullptr ? "" : static_cast<TextBody&>(*body).text()});
    return true;
  }

  static constexpr uint64_t kMost = 1 << 20;
  std::vector<Frame> frames;
};

std::string BytesOf(const Frame& frame) {
  Head head = frame.head;
  head.meta_size = static_cast<uint32_t>(frame.meta.size());
  head.body_size = frame.body.size();
  std::string bytes(kHeadSize, '\0');
  WriteHead(head, bytes.data());
  return bytes + frame.meta + frame.body;
}

// Gives a reader bytes, in pieces if there is a seed. Returns whether it could
// go on.
bool Read(FrameReader& reader, Kept& kept, const std::string& bytes,
          unsigned seed = 0) {
  auto [writer, stream] = MemoryStream::Pair(seed);
  size_t written = 0;
  while (written < bytes.size()) {
    const iovec part{const_cast<char*>(bytes.data()) + written,
                     bytes.size() - written};
    const ssize_t more = writer->Write(&part, 1);
    written += more > 0 ? more : 0;
    if (!reader.ReadFrom(stream.get(), &kept)) {
      return false;
    }
  }
  // A call reads as much as is fair to others.
  for (int i = 0; i < 100000; ++i) {
    if (!reader.ReadFrom(stream.get(), &kept)) {
      return false;
    }
  }
  return true;
}

class InPieces : public testing::TestWithParam<unsigned> {};

TEST_P(InPieces, FramesAreWhole) {
  std::mt19937 random(GetParam());
  std::vector<Frame> frames;
  std::string bytes(kPreface);
  for (int i = 0; i < 30; ++i) {
    Frame frame{
        {Kind::kRequest, static_cast<uint8_t>(random() % 5), 0, random()},
        std::string(random() % 100, 'm'),
        std::string(random() % (i % 5 ? 50 : 200000), 'b')};
    for (char& c : frame.body) {
      c = static_cast<char>(random());
    }
    frames.push_back(frame);
    bytes += BytesOf(frame);
  }
  FrameReader reader(/*expects_preface=*/true);
  Kept kept;
  ASSERT_TRUE(Read(reader, kept, bytes, GetParam()));
  ASSERT_EQ(kept.frames.size(), frames.size());
  for (size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ(kept.frames[i].head.id, frames[i].head.id);
    EXPECT_EQ(kept.frames[i].head.code, frames[i].head.code);
    EXPECT_EQ(kept.frames[i].meta, frames[i].meta);
    EXPECT_EQ(kept.frames[i].body, frames[i].body);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, InPieces, testing::Range(0U, 20U));

TEST(FrameReader, SkipsBodiesThatNobodyWants) {
  FrameReader reader(/*expects_preface=*/false);
  Kept kept;
  ASSERT_TRUE(
      Read(reader, kept,
           BytesOf({{Kind::kAnswer, 9, 0, 1}, "", std::string(500000, 'x')}) +
               BytesOf({{Kind::kAnswer, 0, 0, 2}, "meta", "body"})));
  ASSERT_EQ(kept.frames.size(), 2);
  EXPECT_EQ(kept.frames[0].body, "");
  EXPECT_EQ(kept.frames[1].meta, "meta");
  EXPECT_EQ(kept.frames[1].body, "body");
}

TEST(FrameReader, EndsAtWhatIsNoPreface) {
  for (const std::string bytes :
       {"PRI * HTTP/2.0\r\n", "tfswire2", "\x16\x03"}) {
    FrameReader reader(/*expects_preface=*/true);
    Kept kept;
    EXPECT_FALSE(Read(reader, kept, bytes)) << bytes;
  }
}

TEST(FrameReader, EndsAtWhatIsNoHead) {
  const std::string right = BytesOf({{Kind::kRequest, 1, 0, 7}, "", ""});
  // Of the magic, the kind and what is to be zero, and the size of the meta.
  for (const size_t place : {0, 3, 4, 6, 11, 12, 15}) {
    std::string wrong = right;
    wrong[place] = '\x7f';
    FrameReader reader(/*expects_preface=*/false);
    Kept kept;
    EXPECT_FALSE(Read(reader, kept, wrong)) << place;
    EXPECT_TRUE(kept.frames.empty());
  }
}

TEST(FrameReader, EndsAtABodyThatTheSinkRefuses) {
  Head head{Kind::kRequest, 1, 0, 7, Kept::kMost + 1};
  std::string bytes(kHeadSize, '\0');
  WriteHead(head, bytes.data());
  FrameReader reader(/*expects_preface=*/false);
  Kept kept;
  EXPECT_FALSE(Read(reader, kept, bytes));
}

TEST(FrameReader, AFrameThatIsCutOffIsNone) {
  const std::string whole =
      BytesOf({{Kind::kRequest, 1, 0, 7}, "meta", std::string(100000, 'b')});
  for (const size_t size :
       {0UL, 5UL, kHeadSize, kHeadSize + 2, whole.size() - 1}) {
    auto [writer, stream] = MemoryStream::Pair();
    std::string part = whole.substr(0, size);
    const iovec bytes{part.data(), part.size()};
    if (size > 0) {
      writer->Write(&bytes, 1);
    }
    writer->Shutdown();
    FrameReader reader(/*expects_preface=*/false);
    Kept kept;
    // First what there is, then the end.
    EXPECT_FALSE(reader.ReadFrom(stream.get(), &kept) &&
                 reader.ReadFrom(stream.get(), &kept))
        << size;
    EXPECT_TRUE(kept.frames.empty()) << size;
  }
}

TEST(Hello, IsReadAsItWasWritten) {
  const Hello hello{"1 2.21.0", "/job:ps/replica:0/task:1", "/job:worker", 77};
  const auto read = ReadHello(WriteHello(hello));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->version, hello.version);
  EXPECT_EQ(read->from, hello.from);
  EXPECT_EQ(read->to, hello.to);
  EXPECT_EQ(read->incarnation, hello.incarnation);
}

TEST(Hello, WhatIsCutOffOrTooLongIsNone) {
  const std::string whole = WriteHello({"1", "a", "b", 3});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ReadHello(whole.substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(ReadHello(whole + "x").has_value());
}

}  // namespace
}  // namespace wire
}  // namespace tf_syncrep
