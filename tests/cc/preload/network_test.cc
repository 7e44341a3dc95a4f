// Network: addresses and networks, read, written and compared.

#include "tf_syncrep/cc/preload/network.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <tuple>

namespace tf_syncrep {
namespace {

Network Parsed(const std::string& text) {
  const auto network = Network::Parse(text);
  EXPECT_TRUE(network.has_value()) << text;
  return *network;
}

TEST(NetworkTest, ContainsAddressesThatBeginAsItDoes) {
  for (const auto& [network, inside, outside] :
       {std::tuple{"192.0.2.7", "192.0.2.7", "192.0.2.6"},
        {"10.32.0.0/11", "10.63.255.255", "10.64.0.0"},
        {"10.32.0.0/11", "10.32.0.0", "10.31.255.255"},
        {"0.0.0.0/0", "203.0.113.9", "2001:db8::1"},
        {"::/0", "2001:db8::1", "203.0.113.9"},
        {"fd00:1:2:3:4:5:6:7", "fd00:1:2:3:4:5:6:7", "fd00:1:2:3:4:5:6:6"},
        {"2001:db8:40::/42", "2001:db8:7f:ffff::", "2001:db8:80::"},
        {"2001:db8:40::/42", "2001:db8:40::", "2001:db8:3f::"},
        {"10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0"}}) {
    EXPECT_TRUE(Parsed(network).Contains(Parsed(inside)))
        << network << ", " << inside;
    EXPECT_FALSE(Parsed(network).Contains(Parsed(outside)))
        << network << ", " << outside;
  }
}

TEST(NetworkTest, RefusesWhatIsNone) {
  for (const char* text :
       {"", "host", "10.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1",
        "10.0.0.0/8x", "10.0.0.0/8/8", "fd00::/129", "fd00::/1000", "/8"}) {
    EXPECT_EQ(Network::Parse(text), std::nullopt) << text;
  }
}

TEST(NetworkTest, IsWrittenAsItIsRead) {
  for (const char* text :
       {"192.0.2.7", "10.32.0.0/11", "2001:db8::1", "fd00::/8", "::/0"}) {
    EXPECT_EQ(Parsed(text).ToString(), text);
  }
}

TEST(NetworkTest, KnowsLoopback) {
  EXPECT_TRUE(Parsed("127.0.0.1").IsLoopback());
  EXPECT_TRUE(Parsed("127.255.0.9").IsLoopback());
  EXPECT_TRUE(Parsed("::1").IsLoopback());
  EXPECT_FALSE(Parsed("128.0.0.1").IsLoopback());
  EXPECT_FALSE(Parsed("::2").IsLoopback());
}

TEST(NetworkTest, TakesIpv4InIpv6ForIpv4) {
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  ASSERT_EQ(inet_pton(AF_INET6, "::ffff:192.0.2.7", &mapped.sin6_addr), 1);
  EXPECT_EQ(Network::Of(reinterpret_cast<const sockaddr*>(&mapped)),
            Parsed("192.0.2.7"));
  sockaddr_un other{};
  other.sun_family = AF_UNIX;
  EXPECT_EQ(Network::Of(reinterpret_cast<const sockaddr*>(&other)),
            std::nullopt);
}

}  // namespace
}  // namespace tf_syncrep
