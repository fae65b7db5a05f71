#include "serve/images/address.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

namespace deepinfer::serve {
namespace {

struct Range4 {
  uint32_t first;
  int bits;
};

constexpr uint32_t v4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return a << 24 | b << 16 | c << 8 | d; }

constexpr Range4 kForbidden4[] = {
    {v4(0, 0, 0, 0), 8},         // this network
    {v4(10, 0, 0, 0), 8},        // private
    {v4(100, 64, 0, 0), 10},     // shared by carriers
    {v4(127, 0, 0, 0), 8},       // this host
    {v4(169, 254, 0, 0), 16},    // the link; clouds keep their metadata services here
    {v4(172, 16, 0, 0), 12},     // private
    {v4(192, 0, 0, 0), 24},      // protocol assignments
    {v4(192, 0, 2, 0), 24},      // documentation
    {v4(192, 88, 99, 0), 24},    // 6to4 relays
    {v4(192, 168, 0, 0), 16},    // private
    {v4(198, 18, 0, 0), 15},     // benchmarks
    {v4(198, 51, 100, 0), 24},   // documentation
    {v4(203, 0, 113, 0), 24},    // documentation
    {v4(224, 0, 0, 0), 4},       // groups
    {v4(240, 0, 0, 0), 4},       // reserved, and broadcast
};

struct Range6 {
  uint8_t first[16];
  int bits;
};

// Inside 2000::/3, which alone is assigned to the public.
constexpr Range6 kForbidden6[] = {
    {{0x20, 0x01}, 23},              // protocol assignments, Teredo among them
    {{0x20, 0x01, 0x0d, 0xb8}, 32},  // documentation
    {{0x20, 0x02}, 16},              // 6to4
    {{0x3f, 0xff}, 20},              // documentation
};
constexpr Range6 kPublic6 = {{0x20}, 3};

bool inside(const uint8_t* address, const Range6& range) {
  for (int bit = 0; bit < range.bits; ++bit) {
    const int mask = 0x80 >> (bit % 8);
    if ((address[bit / 8] & mask) != (range.first[bit / 8] & mask)) return false;
  }
  return true;
}

bool is_public4(uint32_t address) {
  for (const Range4& range : kForbidden4) {
    if ((address ^ range.first) >> (32 - range.bits) == 0) return false;
  }
  return true;
}

bool is_public6(const uint8_t* address) {
  if (!inside(address, kPublic6)) return false;
  for (const Range6& range : kForbidden6) {
    if (inside(address, range)) return false;
  }
  return true;
}

}  // namespace

bool is_public_address(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &address, sizeof in);
    return is_public4(ntohl(in.sin_addr.s_addr));
  }
  if (address.sa_family == AF_INET6) {
    sockaddr_in6 in;
    std::memcpy(&in, &address, sizeof in);
    return is_public6(in.sin6_addr.s6_addr);
  }
  return false;
}

}  // namespace deepinfer::serve
