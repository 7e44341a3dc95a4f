// Runs a fuzzer's function on a corpus, without a fuzzer: replay FILE...
//
// A corpus is one file. It has for each input its length, in four bytes with
// the lowest first, and its bytes. See corpus.py.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// Returns how many inputs were run, or -1 if the file is no corpus.
int64_t Replay(const char* name) {
  std::ifstream file(name, std::ios::binary);
  const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  int64_t num_inputs = 0;
  for (size_t at = 0; at < bytes.size(); ++num_inputs) {
    if (bytes.size() - at < 4) {
      return -1;
    }
    size_t size = 0;
    for (int i = 3; i >= 0; --i) {
      size = size << 8 | bytes[at + i];
    }
    at += 4;
    if (bytes.size() - at < size) {
      return -1;
    }
    // The copy has exactly this size, so that a read beyond it is found.
    const std::vector<uint8_t> input(bytes.begin() + at,
                                     bytes.begin() + at + size);
    LLVMFuzzerTestOneInput(input.data(), input.size());
    at += size;
  }
  return num_inputs;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const int64_t num_inputs = Replay(argv[i]);
    if (num_inputs <= 0) {
      std::fprintf(stderr, "%s is no corpus\n", argv[i]);
      return 2;
    }
    std::printf("%s: %lld inputs\n", argv[i],
                static_cast<long long>(num_inputs));
  }
  return 0;
}
