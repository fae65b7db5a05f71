// What may be read for the images of requests, and from where. Plain data; each limit has the name that errors and
// deepinfer_limits_hit_total use.
//
//   ServeConfig config;
//   config.images.rules.allow_hosts = {"images.internal:8080"};
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace deepinfer::serve {

struct FetchRules {
  // HOST or HOST:PORT, as they stand in URLs: an operator's own stores. These may have any address, and the port named
  // here, or any port if none is named.
  std::vector<std::string> allow_hosts;
  int redirects_max = 3;
};

struct ImageOptions {
  bool fetch = true;  // http(s) URLs; else only data URLs are read
  FetchRules rules;
  size_t bytes_max = size_t{32} << 20;           // image_bytes_max: of one image
  size_t fetched_bytes_max = size_t{200} << 20;  // images_fetched_bytes_max: of a request's fetched images
  int side_max = 8192;                           // image_side_max: pixels of width and of height ..
  size_t many_images = 15;                       // .. and half of it in requests with so many (spec/deepinfer.md A10)
  double timeout_s = 20;                         // image_timeout_s: for all images of a request
  // image_memory_max: for pixels, of all requests; half of it for fetched files
  size_t memory_max = size_t{1} << 30;
  size_t requests_max = 256;                     // images_requests_max: whose images are being read or wait
  int fetch_threads = 64;                        // images that are fetched at once
  int decode_threads = 4;                        // that are decoded at once
};

}  // namespace deepinfer::serve
