#include "tf_syncrep/cc/lib/memory_guard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <new>
#include <optional>
#include <string_view>

namespace tf_syncrep {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The text of a file, whose end is cut off if it is very long. No memory is
// allocated, since there may be little.
class SmallFile {
 public:
  explicit SmallFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
      return;
    }
    ssize_t got;
    while (size_ < text_.size() &&
           (got = read(file, text_.data() + size_, text_.size() - size_)) > 0) {
      size_ += got;
    }
    close(file);
  }

  std::string_view text() const { return {text_.data(), size_}; }

 private:
  std::array<char, 16384> text_;
  size_t size_ = 0;
};

std::optional<int64_t> Number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  int64_t number;
  const auto parsed =
      std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc() && number >= 0 ? std::optional(number)
                                                 : std::nullopt;
}

// Calls `visit` for each line, or for each part of a list, without its end.
template <typename Visit>
void ForEach(char end_of_each, std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(end_of_each), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Returns the number after `name`, which begins a line.
std::optional<int64_t> Field(std::string_view text, std::string_view name) {
  std::optional<int64_t> number;
  ForEach('\n', text, [&](std::string_view line) {
    if (line.substr(0, name.size()) == name) {
      number = Number(line.substr(name.size()));
    }
  });
  return number;
}

void TakeLeast(int64_t bytes, int64_t total, MemoryLeft* least) {
  if (bytes < least->bytes) {
    *least = {std::max<int64_t>(bytes, 0), total};
  }
}

// The names of the files of a control group. Pages of files that were not used
// for long count as usage, although the kernel takes them back at once.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive;  // a field of memory.stat
};
constexpr GroupFiles kVersion1 = {
    "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "};
constexpr GroupFiles kVersion2 = {"/memory.max", "/memory.current",
                                  "inactive_file "};

void TakeGroup(const std::string& folder, const GroupFiles& files,
               MemoryLeft* least) {
  const auto limit = Number(SmallFile(folder + files.limit).text());
  const auto usage = Number(SmallFile(folder + files.usage).text());
  if (limit && usage) {
    const auto inactive =
        Field(SmallFile(folder + "/memory.stat").text(), files.inactive);
    TakeLeast(*limit - std::max<int64_t>(*usage - inactive.value_or(0), 0),
              *limit, least);
  }
}

// Reads a group and those around it. In a container the file system may begin
// at the group itself, whose path is not found below it then.
void TakeGroups(const std::string& mount, std::string_view path,
                const GroupFiles& files, MemoryLeft* least) {
  while (path.size() > 1) {
    TakeGroup(mount + std::string(path), files, least);
    path = path.substr(0, path.rfind('/'));
  }
  TakeGroup(mount, files, least);
}

}  // namespace

MemoryLeft ReadMemoryLeft(const std::string& root) {
  MemoryLeft least = {kUnknown, kUnknown};
  try {
    const SmallFile machine(root + "/proc/meminfo");
    const auto available = Field(machine.text(), "MemAvailable:");
    const auto total = Field(machine.text(), "MemTotal:");
    if (available && total) {
      TakeLeast(*available * 1024, *total * 1024, &least);
    }
    const SmallFile groups(root + "/proc/self/cgroup");
    // A line is NUMBER:CONTROLLERS:PATH, without controllers in version 2.
    ForEach('\n', groups.text(), [&](std::string_view line) {
      const size_t first = line.find(':');
      const size_t second = line.find(':', first + 1);
      if (first == line.npos || second == line.npos) {
        return;
      }
      const auto controllers = line.substr(first + 1, second - first - 1);
      const auto path = line.substr(second + 1);
      if (controllers.empty()) {
        TakeGroups(root + "/sys/fs/cgroup", path, kVersion2, &least);
      }
      ForEach(',', controllers, [&](std::string_view controller) {
        if (controller == "memory") {
          TakeGroups(root + "/sys/fs/cgroup/memory", path, kVersion1, &least);
        }
      });
    });
  } catch (const std::bad_alloc&) {
    // There is no memory even for a path.
    least.bytes = 0;
  }
  return least;
}

// The guard is never destroyed, since kernels may outlive static destruction.
MemoryGuard& MemoryGuard::OfProcess() {
  static auto* const guard = new MemoryGuard([] { return ReadMemoryLeft(); });
  return *guard;
}

int64_t MemoryGuard::Reserve(int64_t total) {
  constexpr int64_t kLeast = int64_t{64} << 20;
  constexpr int64_t kMost = int64_t{512} << 20;
  return std::clamp(total / 64, kLeast, kMost);
}

bool MemoryGuard::TryTake(int64_t bytes, MemoryLeft* left) {
  if (unchecked_bytes_.fetch_add(bytes) + bytes < kUncheckedBytes) {
    return true;
  }
  *left = reader_();
  if (left->bytes - Reserve(left->total) < bytes) {
    // The next call reads again, however little it asks for.
    unchecked_bytes_ = kUncheckedBytes;
    return false;
  }
  unchecked_bytes_ = 0;
  return true;
}

}  // namespace tf_syncrep
