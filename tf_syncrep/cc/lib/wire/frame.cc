#include "tf_syncrep/cc/lib/wire/frame.h"

#include <cstring>

namespace tf_syncrep {
namespace wire {
namespace {

// At the start of each head: a reader that has lost its place finds out soon.
constexpr uint32_t kMagic = 0x77736674;

template <typename T>
char* Put(char* to, T value) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  std::memcpy(to, &value, sizeof value);
  return to + sizeof value;
}

template <typename T>
const char* Get(const char* from, T* value) {
  std::memcpy(value, from, sizeof *value);
  return from + sizeof *value;
}

}  // namespace

void WriteHead(const Head& head, char* to) {
  to = Put(to, kMagic);
  to = Put(to, static_cast<uint8_t>(head.kind));
  to = Put(to, head.code);
  to = Put(to, uint16_t{0});
  to = Put(to, head.meta_size);
  to = Put(to, uint32_t{0});
  to = Put(to, head.id);
  Put(to, head.body_size);
}

std::optional<Head> ReadHead(const char* from) {
  uint32_t magic;
  uint8_t kind;
  uint16_t zero;
  uint32_t also_zero;
  Head head;
  from = Get(from, &magic);
  from = Get(from, &kind);
  from = Get(from, &head.code);
  from = Get(from, &zero);
  from = Get(from, &head.meta_size);
  from = Get(from, &also_zero);
  from = Get(from, &head.id);
  Get(from, &head.body_size);
  if (magic != kMagic || kind < 1 || kind > 4 || zero != 0 || also_zero != 0 ||
      head.meta_size > kMaxMeta) {
    return std::nullopt;
  }
  head.kind = static_cast<Kind>(kind);
  return head;
}

void PutText(std::string_view text, std::string* to) {
  const auto size = static_cast<uint32_t>(text.size());
  to->append(reinterpret_cast<const char*>(&size), sizeof size);
  to->append(text);
}

bool GetText(std::string_view* from, std::string* text) {
  uint32_t size;
  if (from->size() < sizeof size) {
    return false;
  }
  std::memcpy(&size, from->data(), sizeof size);
  from->remove_prefix(sizeof size);
  if (from->size() < size) {
    return false;
  }
  text->assign(from->substr(0, size));
  from->remove_prefix(size);
  return true;
}

std::string WriteHello(const Hello& hello) {
  std::string meta;
  PutText(hello.version, &meta);
  PutText(hello.from, &meta);
  PutText(hello.to, &meta);
  meta.append(reinterpret_cast<const char*>(&hello.incarnation),
              sizeof hello.incarnation);
  return meta;
}

std::optional<Hello> ReadHello(std::string_view meta) {
  Hello hello;
  if (!GetText(&meta, &hello.version) || !GetText(&meta, &hello.from) ||
      !GetText(&meta, &hello.to) || meta.size() != sizeof hello.incarnation) {
    return std::nullopt;
  }
  std::memcpy(&hello.incarnation, meta.data(), sizeof hello.incarnation);
  return hello;
}

}  // namespace wire
}  // namespace tf_syncrep
