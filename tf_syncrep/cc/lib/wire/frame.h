// The bytes of the wire: what two tasks say to each other on a connection.
//
// A connection begins with eight bytes, which no HTTP/2 connection begins with
// and which no version changes, from the task that dialled. Then both send
// frames: a hello first, the task that was dialled when it has heard the
// other's. A frame is a head of fixed size, a few bytes of `meta`, and a body
// of any size. All numbers are little-endian.

#ifndef TF_SYNCREP_CC_LIB_WIRE_FRAME_H_
#define TF_SYNCREP_CC_LIB_WIRE_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tf_syncrep {
namespace wire {

inline constexpr std::string_view kPreface = "tfswire1";

enum class Kind : uint8_t {
  kHello = 1,    // meta: see Hello
  kRequest = 2,  // id, code: the method
  kAnswer = 3,   // id of the request, code: 0, or that of an error; then meta
                 // is its message
  kCancel = 4,   // id of a request whose answer nobody waits for any more
};

struct Head {
  Kind kind = Kind::kHello;
  uint8_t code = 0;
  uint32_t meta_size = 0;
  uint64_t id = 0;
  uint64_t body_size = 0;
};

inline constexpr size_t kHeadSize = 32;
// Keys of tensors, and messages of errors; a reader keeps as much.
inline constexpr uint32_t kMaxMeta = 64 << 10;

// Writes the `kHeadSize` bytes of a head.
void WriteHead(const Head& head, char* to);

// Reads them. Null if they are not a head, or its meta is too large.
std::optional<Head> ReadHead(const char* from);

// Texts behind one another, each behind its size. GetText takes the first from
// what is left of them, and returns false if there is none.
void PutText(std::string_view text, std::string* to);
bool GetText(std::string_view* from, std::string* text);

// Who is at an end of a connection.
struct Hello {
  // Tasks talk to each other only if they have the same.
  std::string version;
  // Names of tasks: of the sender, and of the one that it talks to.
  std::string from;
  std::string to;
  // The number that the sender's process drew when it started.
  uint64_t incarnation = 0;
};

std::string WriteHello(const Hello& hello);

// Null if `meta` is not a hello.
std::optional<Hello> ReadHello(std::string_view meta);

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_WIRE_FRAME_H_
