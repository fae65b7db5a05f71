#include "serve/utc_time.h"

#include <ctime>

namespace deepinfer::serve {

std::string utc_time(int64_t seconds_since_1970) {
  const std::time_t time = seconds_since_1970;
  std::tm parts = {};
  ::gmtime_r(&time, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
}

}  // namespace deepinfer::serve
