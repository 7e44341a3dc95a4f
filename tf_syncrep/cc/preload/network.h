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

// An address of IPv4, or of IPv6, or all addresses that begin as it does.
class Network {
 public:
  // "10.1.0.0/16", "fd00::/8", "192.0.2.7": null if it is none of these.
  static std::optional<Network> Parse(const std::string& text);

  // The one address; null for other families than IPv4 and IPv6. IPv4 in IPv6,
  // which is what sockets of both families have, becomes IPv4.
  static std::optional<Network> Of(const sockaddr* address);

  // Whether all of `other` is in it.
  bool Contains(const Network& other) const;

  // Whether it is of a machine's addresses for itself.
  bool IsLoopback() const;

  // "192.0.2.7", "10.1.0.0/16".
  std::string ToString() const;

  bool operator==(const Network& other) const {
    return family_ == other.family_ && bytes_ == other.bytes_ &&
           num_bits_ == other.num_bits_;
  }

 private:
  Network(int family, const void* bytes);

  // All that there are of the family.
  int MaxBits() const;

  int family_;
  std::array<uint8_t, sizeof(in6_addr)> bytes_{};
  int num_bits_;  // at the beginning, that count
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_PRELOAD_NETWORK_H_
