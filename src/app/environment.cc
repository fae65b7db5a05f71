#include "app/environment.h"

#include <cstdlib>

#include "base/file.h"

namespace deepinfer::app {
namespace {

constexpr uint64_t kTokenBytesMax = 4096;

// HOME/<below>, or $<variable> when that is set.
std::string dir_or(const char* variable, const std::string& below) {
  if (std::string dir = environment(variable); !dir.empty()) return dir;
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/" + below;
}

std::string hf_home() {
  if (std::string dir = environment("HF_HOME"); !dir.empty()) return dir;
  const std::string cache = dir_or("XDG_CACHE_HOME", ".cache");
  return cache.empty() ? ".huggingface" : cache + "/huggingface";
}

std::string token() {
  std::string text = environment("HF_TOKEN");
  if (text.empty()) {
    const std::string path = environment("HF_TOKEN_PATH");
    Result<std::string> file = read_file(path.empty() ? hf_home() + "/token" : path, kTokenBytesMax);
    if (file.ok()) text = std::move(file).value();
  }
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  text = text.substr(begin, text.find_first_of(" \t\r\n", begin) - begin);
  return text;
}

}  // namespace

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

checkpoint::HubConfig hub_config_from_environment() {
  checkpoint::HubConfig config;
  if (std::string endpoint = environment("HF_ENDPOINT"); !endpoint.empty()) config.endpoint = endpoint;
  while (config.endpoint.ends_with('/')) config.endpoint.pop_back();
  config.cache_dir = environment("HF_HUB_CACHE");
  if (config.cache_dir.empty()) config.cache_dir = hf_home() + "/hub";
  config.token = token();
  config.ca_file = environment("CURL_CA_BUNDLE");
  if (config.ca_file.empty()) config.ca_file = environment("SSL_CERT_FILE");
  return config;
}

bool hub_is_offline() {
  const std::string value = environment("HF_HUB_OFFLINE");
  return !value.empty() && value != "0" && value != "false" && value != "FALSE";
}

std::string state_dir() {
  const std::string dir = dir_or("XDG_STATE_HOME", ".local/state");
  return dir.empty() ? "" : dir + "/deepinfer";
}

}  // namespace deepinfer::app
