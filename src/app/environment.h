// Environment variables that the program reads, in one place; the rooms below get plain values.
// What is no option of DeepInfer's own (those: app/options/option.h).
//
//   HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, XDG_CACHE_HOME
//                                    as huggingface_hub reads them
//   CURL_CA_BUNDLE, SSL_CERT_FILE    certificates to trust
//   DEEPINFER_HF_MODEL_DIR           the model of commands that take no --model option
//   XDG_STATE_HOME                   history of the chat
//   NO_COLOR, TERM                   plain output
// Proxies (http_proxy, https_proxy, all_proxy, no_proxy) are read by libcurl itself.
#pragma once

#include <string>

#include "checkpoint/hub.h"

namespace deepinfer::app {

// Empty when the variable is not set.
std::string environment(const char* name);

checkpoint::HubConfig hub_config_from_environment();
bool hub_is_offline();

// The folder where DeepInfer keeps what it remembers between runs; empty if there is no home.
std::string state_dir();

}  // namespace deepinfer::app
