#include "serve/gate.h"

#include <gtest/gtest.h>

#include "serve/server.h"

namespace deepinfer::serve {
namespace {

TEST(Traceparent, MustBeWellFormed) {
  const std::string good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  EXPECT_TRUE(is_traceparent(good));
  EXPECT_FALSE(is_traceparent(""));
  EXPECT_FALSE(is_traceparent(good + "0"));
  EXPECT_FALSE(is_traceparent("01" + good.substr(2)));
  EXPECT_FALSE(is_traceparent("00-00000000000000000000000000000000-b7ad6b7169203331-01"));
  EXPECT_FALSE(is_traceparent("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"));
  EXPECT_FALSE(is_traceparent("00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
}

TEST(Address, IsParsedOrRefusedWithASentence) {
  EXPECT_TRUE(parse_address("127.0.0.1:80").value().loopback);
  EXPECT_TRUE(parse_address("localhost:0").value().loopback);
  EXPECT_TRUE(parse_address("[::1]:8000").value().loopback);
  EXPECT_FALSE(parse_address("0.0.0.0:8000").value().loopback);
  EXPECT_FALSE(parse_address("[::]:8000").value().loopback);
  EXPECT_EQ(parse_address("unix:/tmp/x").value().unix_path, "/tmp/x");
  for (const char* text :
       {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "example.com:80", "unix:"}) {
    EXPECT_FALSE(parse_address(text).ok()) << text;
  }
}

}  // namespace
}  // namespace deepinfer::serve
