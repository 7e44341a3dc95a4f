#include "tf_syncrep/cc/preload/network.h"

#include <arpa/inet.h>

#include <cstddef>
#include <cstring>

namespace tf_syncrep {
namespace {

constexpr int kIpv4Bits = 32;
constexpr int kIpv6Bits = 128;
// Where the IPv4 address begins in an IPv6 address that contains one.
constexpr size_t kMappedOffset = 12;

}  // namespace

Network::Network(int family, const void* bytes) : family_(family) {
  num_bits_ = MaxBits();
  std::memcpy(bytes_.data(), bytes, static_cast<size_t>(num_bits_ / 8));
}

int Network::MaxBits() const {
  return family_ == AF_INET ? kIpv4Bits : kIpv6Bits;
}

std::optional<Network> Network::Parse(const std::string& text) {
  const size_t slash = text.find('/');
  const std::string host = text.substr(0, slash);
  in_addr ipv4{};
  in6_addr ipv6{};
  std::optional<Network> network;
  if (inet_pton(AF_INET, host.c_str(), &ipv4) == 1) {
    network = Network(AF_INET, &ipv4);
  } else if (inet_pton(AF_INET6, host.c_str(), &ipv6) == 1) {
    network = Network(AF_INET6, &ipv6);
  }
  if (!network || slash == std::string::npos) {
    return network;
  }
  const std::string bits = text.substr(slash + 1);
  if (bits.empty() || bits.size() > 3 ||
      bits.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(bits) > network->num_bits_) {
    return std::nullopt;
  }
  network->num_bits_ = std::stoi(bits);
  return network;
}

std::optional<Network> Network::Of(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* ipv4 = reinterpret_cast<const sockaddr_in*>(address);
    return Network(AF_INET, &ipv4->sin_addr);
  }
  if (address->sa_family != AF_INET6) {
    return std::nullopt;
  }
  const in6_addr& ipv6 =
      reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&ipv6)) {
    return Network(AF_INET, ipv6.s6_addr + kMappedOffset);
  }
  return Network(AF_INET6, &ipv6);
}

bool Network::Contains(const Network& other) const {
  if (family_ != other.family_ || num_bits_ > other.num_bits_) {
    return false;
  }
  for (int i = 0; i < num_bits_; ++i) {
    const int differs = bytes_[i / 8] ^ other.bytes_[i / 8];
    if (((differs << (i % 8)) & 0x80) != 0) {
      return false;
    }
  }
  return true;
}

bool Network::IsLoopback() const {
  if (family_ == AF_INET) {
    return num_bits_ >= 8 && bytes_[0] == IN_LOOPBACKNET;
  }
  return *this == Network(AF_INET6, &in6addr_loopback);
}

std::string Network::ToString() const {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family_, bytes_.data(), text, sizeof text);
  return num_bits_ == MaxBits()
             ? text
             : std::string(text) + "/" + std::to_string(num_bits_);
}

}  // namespace tf_syncrep
