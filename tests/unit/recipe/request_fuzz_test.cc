// Random requests and random damage to the fixtures' requests: every body is refused with a message and a valid error
// object, or gives a prompt whose tokens are those of the template. The seed is fixed; failures print the body.
#include <random>

#include <gtest/gtest.h>

#include "base/file.h"
#include "recipe/conversation_json.h"
#include "recipe/render.h"
#include "recipe/request.h"
#include "recipe/tokenize.h"
#include "text/utf8.h"

namespace deepinfer::recipe {
namespace {

using Random = std::mt19937_64;

RequestOptions options() {
  RequestOptions o;
  o.models = {{"m", Version::kV41}, {"DeepSeek-V4-Pro", Version::kV4}};
  o.accept_any_model = true;
  o.load_previous = [](std::string_view) -> Result<std::vector<Json>> { return std::vector<Json>{}; };
  return o;
}

struct Seed {
  Protocol protocol;
  Json body;
};

std::vector<Seed> seeds() {
  std::vector<Seed> out;
  for (const char* name : {"requests.json", "oracle_chat.json", "oracle_responses.json", "oracle_messages.json"}) {
    Result<std::string> file = read_file(std::string(DEEPINFER_TEST_DATA "/recipe/") + name, 8 << 20);
    if (!file.ok()) continue;
    const Json root = parse_json(file.value()).value();
    for (const Json& c : root.find("cases")->as_array()) {
      if (!c.find("body")->is_object()) continue;
      const std::string& protocol = c.find("protocol")->as_string();
      out.push_back({protocol == "responses"  ? Protocol::kResponses
                     : protocol == "messages" ? Protocol::kMessages
                                              : Protocol::kChat,
                     *c.find("body")});
    }
  }
  return out;
}

Json random_value(Random& random, int depth) {
  static const char* kWords[] = {"",
                                 "text",
                                 "user",
                                 "assistant",
                                 "tool",
                                 "function",
                                 "auto",
                                 "<｜User｜>",
                                 "\u0000x",
                                 "k1",
                                 "data:image/png;base64,AAAA",
                                 "json"};
  switch (random() % (depth > 2 ? 7 : 9)) {
    case 0: return nullptr;
    case 1: return (random() & 1) != 0;
    case 2: return static_cast<int64_t>(random() % 5) - 1;
    case 3: return 0.5;
    case 4: return BigInteger{"99999999999999999999999999"};
    case 5:
    case 6: return kWords[random() % std::size(kWords)];
    case 7: {
      JsonArray list;
      for (size_t i = random() % 3; i > 0; --i) list.push_back(random_value(random, depth + 1));
      return list;
    }
    default: {
      static const char* kKeys[] = {"type", "text", "content", "role", "name", "id", "input", "arguments"};
      Json object = Json::object();
      for (size_t i = random() % 4; i > 0; --i)
        object.set(kKeys[random() % std::size(kKeys)], random_value(random, depth + 1));
      return object;
    }
  }
}

// Replaces, removes or doubles one random node.
void damage(Json& value, Random& random) {
  Json* at = &value;
  for (int depth = 0; depth < 12; ++depth) {
    if (at->is_object() && !at->as_object().empty()) {
      JsonObject& members = at->as_object();
      const size_t i = random() % members.size();
      const uint64_t action = random() % 8;
      if (action == 0) {
        members.erase(members.begin() + static_cast<int64_t>(i));
        return;
      }
      if (action == 1) {
        members[i].value = random_value(random, 0);
        return;
      }
      at = &members[i].value;
    } else if (at->is_array() && !at->as_array().empty()) {
      JsonArray& list = at->as_array();
      const size_t i = random() % list.size();
      const uint64_t action = random() % 8;
      if (action == 0) {
        list.erase(list.begin() + static_cast<int64_t>(i));
        return;
      }
      if (action == 1) {
        list.push_back(Json(list[i]));
        return;
      }
      if (action == 2) {
        list.insert(list.begin() + static_cast<int64_t>(i), random_value(random, 0));
        return;
      }
      at = &list[i];
    } else {
      break;
    }
  }
  *at = random_value(random, 0);
}

void check_spans(const Prompt& prompt, const std::string& body) {
  size_t at = 0;
  for (const TrustedSpan& s : prompt.specials) {
    ASSERT_GE(s.begin, at) << body;
    ASSERT_EQ(std::string_view(prompt.text).substr(s.begin, s.length), special_text(s.token)) << body;
    at = s.begin + s.length;
  }
  ASSERT_TRUE(text::is_valid_utf8(prompt.text)) << body;
}

// Returns whether the body was accepted.
bool check_body(Protocol protocol, const std::string& body, const RequestOptions& o) {
  Request request;
  if (const auto error = parse_request(protocol, body, o, request)) {
    EXPECT_FALSE(error->message.empty()) << body;
    EXPECT_TRUE(parse_json(error_body(protocol, *error)).ok()) << body;
    EXPECT_GE(error->status, 400);
    return false;
  }
  check_spans(render_request(request), body);
  return true;
}

TEST(RequestFuzz, DamagedRequestsAreRefusedOrRendered) {
  const std::vector<Seed> all = seeds();
  ASSERT_GT(all.size(), 200u);
  const RequestOptions o = options();
  Random random(20261129);
  int accepted = 0, tried = 0;
  for (int round = 0; round < 60; ++round) {
    for (const Seed& seed : all) {
      Json body = seed.body;
      for (uint64_t n = 1 + random() % 3; n > 0; --n) damage(body, random);
      // Now and then under another API than it was written for.
      const Protocol protocol = random() % 16 == 0 ? static_cast<Protocol>(random() % 4) : seed.protocol;
      accepted += check_body(protocol, to_compact_json(body), o) ? 1 : 0;
      ++tried;
      if (testing::Test::HasFailure()) return;
    }
  }
  // Both sides must have been tried.
  EXPECT_GT(accepted, tried / 20);
  EXPECT_LT(accepted, tried - tried / 20);
}

TEST(RequestFuzz, DamagedBytesAreRefusedOrRendered) {
  const std::vector<Seed> all = seeds();
  const RequestOptions o = options();
  Random random(5);
  for (const Seed& seed : all) {
    const std::string body = to_compact_json(seed.body);
    for (int i = 0; i < 6; ++i) {
      std::string changed = body;
      for (uint64_t n = 1 + random() % 4; n > 0; --n) changed[random() % changed.size()] = static_cast<char>(random());
      check_body(seed.protocol, changed, o);
      check_body(seed.protocol, body.substr(0, random() % body.size()), o);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Whatever spelling stands in a request's strings, the tokens stay those of the request with harmless strings.
TEST(RequestFuzz, NoSpellingBecomesAToken) {
  const text::Tokenizer tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json").value();
  const SpecialIds specials = SpecialIds::find(tokenizer, Version::kV41).value();
  const PromptEncoder encoder(tokenizer, specials, {});
  const std::string disguises[] = {"<｜User｜>",
                                   "<\uFF5CUser\uFF5C>",
                                   "</think>",
                                   "</\u200Dthink>",
                                   "｜DSML｜",
                                   "|DSML|",
                                   "<｜end▁of▁sentence｜>",
                                   "<｜image｜>",
                                   "<|User|>",
                                   "</｜DSML｜ parameter>",
                                   "<｜deepseek_image｜>"};
  const std::string template_text =
      R"({"model":"m","messages":[{"role":"system","content":"X"},{"role":"user","content":[{"type":"text","text":"X"},{"type":"text","text":"X"}]},
       {"role":"assistant","content":"X","reasoning_content":"X","tool_calls":[{"id":"1","type":"function","function":{"name":"X","arguments":"{\"X\":\"X\",\"n\":[\"X\"]}"}}]},
       {"role":"tool","tool_call_id":"1","content":"X"},{"role":"latest_reminder","content":"X"},{"role":"user","content":"X"}],
       "tools":[{"type":"function","function":{"name":"f","description":"X","parameters":{"type":"object","properties":{"X":{"type":"string","description":"X"}}}}}]})";
  const auto special_ids_of = [&](const std::string& word) {
    std::string body;
    for (char c : template_text) body += c == 'X' ? word : std::string(1, c);
    Request request;
    EXPECT_FALSE(parse_request(Protocol::kChat, body, options(), request)) << body;
    const std::vector<text::TokenId> ids = encoder.encode(render_request(request)).value().ids;
    std::vector<text::TokenId> added;
    for (const text::TokenId id : ids) {
      if (tokenizer.is_added(id)) added.push_back(id);
    }
    return added;
  };
  const auto plain = special_ids_of("harmless");
  EXPECT_GT(plain.size(), 20u);
  for (const std::string& d : disguises) {
    EXPECT_EQ(special_ids_of(d), plain) << d;
    for (size_t cut = 1; cut + 1 < d.size(); cut += 3) {
      if ((static_cast<unsigned char>(d[cut]) & 0xc0) == 0x80) continue;
      EXPECT_EQ(special_ids_of(d.substr(cut) + d + d.substr(0, cut)), plain) << d;
    }
  }
}

}  // namespace
}  // namespace deepinfer::recipe
