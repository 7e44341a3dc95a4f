// Networks of the Internet protocols.

#ifndef TF_SYNCREP_CC_PRELOAD_NETWORK_H_
#define TF_SYNCREP_CC_PRELOAD_NETWORK_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace tf_syncrep {

// An IPv4 or IPv6 address, or all addresses with the same first bits.
class Network {
 public:
  // Parses "10.1.0.0/16", "fd00::/8" or "192.0.2.7". Null if `text` is none of
  // these.
  static std::optional<Network> Parse(const std::string& text);

  // A single address; null for other families than IPv4 and IPv6. An IPv4
  // address within an IPv6 one, as sockets of both families have it, becomes
  // IPv4.
  static std::optional<Network> Of(const sockaddr* address);

  // Whether all addresses of `other` are in this network.
  bool Contains(const Network& other) const;

  // Whether these are a machine's addresses for itself.
  bool IsLoopback() const;

  // "192.0.2.7", "10.1.0.0/16".
  std::string ToString() const;

  bool operator==(const Network& other) const {
    return family_ == other.family_ && bytes_ == other.bytes_ &&
           num_bits_ == other.num_bits_;
  }

 private:
  Network(int family, const void* bytes);

  int MaxBits() const;

  int family_;
  std::array<uint8_t, sizeof(in6_addr)> bytes_{};
  int num_bits_;  // how many of the first bits count
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_PRELOAD_NETWORK_H_
