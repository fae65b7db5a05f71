// Image files to pixels, what is refused, and which addresses may be fetched from.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "recipe/json.h"
#include "serve/images/address.h"
#include "serve/images/data_url.h"
#include "serve/images/decode.h"
#include "serve/images/fetch.h"
#include "serve/images/loader.h"

namespace deepinfer::serve {
namespace {

constexpr int kSideMax = 8192;
const Deadline kNever = Deadline::max();
const std::string kFolder = std::string(DEEPINFER_TEST_DATA) + "/serve/images/";

std::string read(const std::string& name) { return read_file(kFolder + name, 1 << 20).value(); }

struct Case {
  std::string file;
  int width, height, tolerance;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  const recipe::Json list = recipe::parse_json(read("cases.json")).value();
  for (const recipe::Json& c : list.as_array()) {
    const auto number = [&](const char* name) { return static_cast<int>(*c.find(name)->to_int64()); };
    out.push_back({c.find("file")->as_string(), number("width"), number("height"), number("tolerance")});
  }
  return out;
}

std::optional<ImageError> decode(std::string_view bytes, Pixels* out, int side_max = kSideMax) {
  ImageInfo info;
  if (auto error = read_image_info(bytes, side_max, &info)) return error;
  return decode_image(bytes, info, kNever, out);
}

std::string_view code_of(std::string_view bytes) {
  Pixels pixels;
  const auto error = decode(bytes, &pixels);
  return error ? error->code : "ok";
}

TEST(ImagesTest, GivesThePixelsThatPillowGives) {
  ASSERT_GE(cases().size(), 18u);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.file);
    Pixels pixels;
    const auto error = decode(read(c.file), &pixels);
    ASSERT_FALSE(error) << error->message;
    const std::string want = read(c.file + ".rgb");
    ASSERT_EQ(pixels.width, c.width);
    ASSERT_EQ(pixels.height, c.height);
    ASSERT_EQ(pixels.rgb.size(), want.size());
    int worst = 0;
    for (size_t i = 0; i < want.size(); ++i)
      worst = std::max(worst, std::abs(pixels.rgb[i] - static_cast<uint8_t>(want[i])));
    EXPECT_LE(worst, c.tolerance);
  }
}

TEST(ImagesTest, RefusesFilesThatAreCutOff) {
  for (const Case& c : cases()) {
    const std::string bytes = read(c.file);
    // The last bytes of some formats say nothing about the first frame: trailers, checksums, second frames.
    for (const size_t keep : {size_t{1}, size_t{4}, size_t{12}, bytes.size() / 8, bytes.size() / 4}) {
      EXPECT_NE(code_of(std::string_view(bytes).substr(0, keep)), "ok") << c.file << " cut to " << keep << " bytes";
    }
  }
  for (const char* name :
       {"baseline.jpg", "progressive.jpg", "rgb.png", "interlaced.png", "lossy.webp", "lossless.webp", "still.gif"}) {
    const std::string bytes = read(name);
    EXPECT_EQ(code_of(std::string_view(bytes).substr(0, bytes.size() - bytes.size() / 8)), image_code::kDamaged)
        << name;
  }
}

TEST(ImagesTest, TellsWhatIsNoImage) {
  EXPECT_EQ(code_of(""), image_code::kEmpty);
  EXPECT_EQ(code_of("<!DOCTYPE html><html></html>"), image_code::kUnsupportedType);
  EXPECT_EQ(code_of("BM\x10\0\0\0"), image_code::kUnsupportedType);
  EXPECT_EQ(code_of("RIFF\x10\0\0\0WAVEfmt "), image_code::kUnsupportedType);
  EXPECT_EQ(code_of("<svg xmlns=\"http://www.w3.org/2000/svg\"/>"), image_code::kUnsupportedType);
}

// A head that promises more pixels than may be is refused before anything is set aside for them.
TEST(ImagesTest, RefusesTooManyPixelsByTheHeadAlone) {
  std::string png = read("rgb.png");
  png[16] = 0x7f;
  EXPECT_EQ(code_of(png), image_code::kTooManyPixels);
  png = read("rgb.png");
  png[18] = 0x40;  // 16,405 pixels wide
  EXPECT_EQ(code_of(png), image_code::kTooManyPixels);
  std::string gif = read("still.gif");
  gif[7] = static_cast<char>(0xff);
  EXPECT_EQ(code_of(gif), image_code::kTooManyPixels);
  std::string jpeg = read("baseline.jpg");
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg[frame + 5] = static_cast<char>(0xfa);
  EXPECT_EQ(code_of(jpeg), image_code::kTooManyPixels);
  Pixels pixels;
  for (const Case& c : cases()) {
    const auto error = decode(read(c.file), &pixels, c.width - 1);
    ASSERT_TRUE(error) << c.file;
    EXPECT_EQ(error->code, image_code::kTooManyPixels) << c.file;
    EXPECT_EQ(error->limit, "image_side_max");
  }
}

TEST(ImagesTest, GivesUpAtTheDeadline) {
  for (const char* name : {"progressive.jpg", "rgb.png", "lossy.webp", "still.gif"}) {
    const std::string bytes = read(name);
    ImageInfo info;
    ASSERT_FALSE(read_image_info(bytes, kSideMax, &info));
    Pixels pixels;
    const auto error = decode_image(bytes, info, std::chrono::steady_clock::now() - std::chrono::seconds(1), &pixels);
    ASSERT_TRUE(error) << name;
    EXPECT_EQ(error->limit, "image_timeout_s") << name;
  }
}

TEST(ImagesTest, ReadsBase64) {
  std::string out;
  EXPECT_TRUE(decode_data_url("data:image/png;base64,SGVsbG8=", &out));
  EXPECT_EQ(out, "Hello");
  EXPECT_TRUE(decode_data_url("data:image/png;base64,SGVsbG8", &out));
  EXPECT_EQ(out, "Hello");
  EXPECT_TRUE(decode_data_url("data:image/png;base64,", &out));
  EXPECT_EQ(out, "");
  EXPECT_TRUE(decode_data_url("data:image/png;base64,+/+/", &out));
  EXPECT_EQ(out, "\xfb\xff\xbf");
  for (const char* bad : {"data:image/png;base64,A",
                          "data:image/png;base64,SGVs bG8=", "data:image/png;base64,SGVsbG8===", "data:image/png,SGVs",
                          "data:image/png;base64,SG=sbG8", "data:image/png;base64,SGVs-_"}) {
    EXPECT_FALSE(decode_data_url(bad, &out)) << bad;
  }
}

bool is_public(const char* text) {
  sockaddr_in in = {};
  in.sin_family = AF_INET;
  if (::inet_pton(AF_INET, text, &in.sin_addr) == 1) return is_public_address(reinterpret_cast<const sockaddr&>(in));
  sockaddr_in6 in6 = {};
  in6.sin6_family = AF_INET6;
  EXPECT_EQ(::inet_pton(AF_INET6, text, &in6.sin6_addr), 1) << text;
  return is_public_address(reinterpret_cast<const sockaddr&>(in6));
}

TEST(ImagesTest, KnowsPublicAddresses) {
  for (const char* good : {"1.1.1.1",         "8.8.8.8",         "9.255.255.255",
                           "11.0.0.0",        "100.63.255.255",  "100.128.0.0",
                           "126.255.255.255", "128.0.0.1",       "169.253.255.255",
                           "169.255.0.0",     "172.15.255.255",  "172.32.0.0",
                           "192.0.1.0",       "192.167.255.255", "192.169.0.0",
                           "198.17.255.255",  "198.20.0.0",      "223.255.255.255",
                           "2606:4700::1111", "2a00:1450::1",    "2001:4860:4860::8888"}) {
    EXPECT_TRUE(is_public(good)) << good;
  }
  for (const char* bad :
       {"0.0.0.0",         "0.1.2.3",         "10.0.0.1",        "10.255.255.255", "100.64.0.0",
        "100.127.255.255", "127.0.0.1",       "127.255.255.254", "169.254.10.10",  "169.254.169.254",
        "172.16.0.0",      "172.31.255.255",  "192.0.0.1",       "192.0.2.1",      "192.88.99.1",
        "192.168.0.1",     "192.168.255.255", "198.18.0.1",      "198.19.255.255", "198.51.100.7",
        "203.0.113.7",     "224.0.0.1",       "239.255.255.255", "240.0.0.1",      "255.255.255.255"}) {
    EXPECT_FALSE(is_public(bad)) << bad;
  }
  for (const char* bad : {"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
                          "64:ff9b:1::1", "100::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1",
                          "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "4000::1"}) {
    EXPECT_FALSE(is_public(bad)) << bad;
  }
  sockaddr other = {};
  other.sa_family = AF_UNIX;
  EXPECT_FALSE(is_public_address(other));
}

// None of these opens a connection.
TEST(ImagesTest, RefusesUrlsThatLeadInside) {
  const FetchLimits limits = {.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20)};
  const auto code = [&](const char* url, const FetchRules& rules = {}) {
    std::string bytes;
    const auto error = fetch_image(url, rules, limits, [] { return false; }, &bytes);
    return error ? std::string(error->code) + ": " + error->message : std::string("ok");
  };
  for (const char* url :
       {"http://127.0.0.1/x", "http://localhost/x", "https://localhost/x", "http://LocalHost/x", "http://127.1/",
        "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://0/", "http://[::1]/",
        "http://[::ffff:127.0.0.1]/", "http://169.254.10.10/x", "http://10.1.2.3/", "http://[fe80::1%25lo]/",
        "http://[fd00::1]/", "http://100.64.0.1/", "http://224.0.0.1/"}) {
    EXPECT_NE(code(url).find("not on the public internet"), std::string::npos) << url << " -> " << code(url);
  }
  for (const char* url :
       {"http://127.0.0.1:9/", "http://example.com:22/", "http://example.com:8080/x.png", "http://[::1]:1/"}) {
    EXPECT_NE(code(url).find("ports 80 and 443"), std::string::npos) << url << " -> " << code(url);
  }
  for (const char* url :
       {"http://user@example.com/", "http://user:secret@example.com/", "http://:secret@example.com/"}) {
    EXPECT_NE(code(url).find("password"), std::string::npos) << url << " -> " << code(url);
  }
  for (const char* url : {"file:///etc/passwd", "ftp://example.com/x", "gopher://example.com/", "//example.com/x",
                          "http://", "http://a b/", "x"}) {
    EXPECT_TRUE(code(url).starts_with(image_code::kBadUrl)) << url << " -> " << code(url);
  }
  // What is allowed is that host as written, not what else its name or port might mean.
  const FetchRules rules = {.allow_hosts = {"127.0.0.1:9", "stores.example"}};
  EXPECT_NE(code("http://127.0.0.1:9/", rules).find("cannot be reached"), std::string::npos)
      << code("http://127.0.0.1:9/", rules);
  EXPECT_NE(code("http://127.0.0.1/", rules).find("not on the public internet"), std::string::npos);
  EXPECT_NE(code("http://127.0.0.2:9/", rules).find("ports 80 and 443"), std::string::npos);
  EXPECT_NE(code("http://stores.example@127.0.0.1/", rules).find("password"), std::string::npos);
}

std::string encoded(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out = "data:image/png;base64,";
  uint32_t bits = 0;
  int held = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<uint8_t>(c);
    for (held += 8; held >= 6; held -= 6) out += kDigits[bits >> (held - 6) & 63];
  }
  if (held > 0) out += kDigits[bits << (6 - held) & 63];
  return out;
}

std::vector<recipe::Image> request(size_t count, const std::string& source) {
  std::vector<recipe::Image> images(count);
  for (size_t i = 0; i < count; ++i)
    images[i] = {.source = source, .is_data_url = true, .path = "image[" + std::to_string(i) + "]"};
  return images;
}

// What a request's images come to; blocks.
std::optional<recipe::ApiError> outcome(ImageLoader& loader, std::vector<recipe::Image> images) {
  std::promise<std::optional<recipe::ApiError>> said;
  const auto check =
      loader.check(std::move(images), [&](std::optional<recipe::ApiError> error) { said.set_value(std::move(error)); });
  return check ? said.get_future().get() : recipe::ApiError{.status = 503};
}

TEST(ImageLoaderTest, NamesTheFirstBadImageOfManyRequestsAtOnce) {
  const std::string good = encoded(read("rgb.png"));
  std::atomic<int> ok{0}, bad{0};
  ImageLoader loader({}, [&](const ImageOutcome& o) { ++(o.code == "ok" ? ok : bad); });
  EXPECT_FALSE(outcome(loader, request(600, good)));
  EXPECT_EQ(ok, 600);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        std::vector<recipe::Image> images = request(40, good);
        images[7].source = "data:image/png;base64,SGVsbG8=";
        images[23].source = "data:image/png;base64,*";
        const auto error = outcome(loader, std::move(images));
        ASSERT_TRUE(error);
        EXPECT_EQ(error->param, "image[7]");
        EXPECT_EQ(error->code, image_code::kUnsupportedType);
        EXPECT_EQ(error->status, 400);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_GE(bad, 160);
}

TEST(ImageLoaderTest, HoldsItsLimits) {
  const std::string good = encoded(read("rgb.png"));
  const auto none = [](const ImageOutcome&) {};
  ImageLoader small({.bytes_max = 100}, none);
  EXPECT_EQ(outcome(small, request(1, good))->code, image_code::kTooManyBytes);
  ImageLoader narrow({.side_max = 30}, none);
  EXPECT_FALSE(outcome(narrow, request(14, good)));
  EXPECT_EQ(outcome(narrow, request(15, good))->code, image_code::kTooManyPixels);  // half the side from 15 on
  ImageLoader busy({.requests_max = 0}, none);
  EXPECT_EQ(outcome(busy, request(1, good))->status, 503);
  ImageLoader poor({.memory_max = 10}, none);  // one at a time, however large
  EXPECT_FALSE(outcome(poor, request(20, good)));
}

TEST(ImageLoaderTest, SaysNothingOnceGivenUp) {
  const std::string good = encoded(read("rgb.png"));
  std::atomic<int> said{0};
  {
    ImageLoader loader({}, [](const ImageOutcome&) {});
    for (int i = 0; i < 200; ++i) {
      auto check = loader.check(request(100, good), [&](std::optional<recipe::ApiError>) { ++said; });
      ASSERT_TRUE(check);
      check.reset();
    }
    EXPECT_FALSE(outcome(loader, request(1, good)));
  }
  EXPECT_LT(said, 200);
}

}  // namespace
}  // namespace deepinfer::serve
