#include "checkpoint/engram_classes.h"

#include <simdjson.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <unordered_map>

#include "base/file.h"
#include "checkpoint/json_object.h"

namespace deepinfer::checkpoint {
namespace {

namespace dom = simdjson::dom;

constexpr uint64_t kMaxTokenizerBytes = 256 << 20;
constexpr uint64_t kMaxClassesBytes = 256 << 20;

// Byte-level BPE writes each byte as one visible character: itself where it is printable, else 256 + its rank among the
// others.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
      bytes_[static_cast<size_t>(printable ? b : next++)] = b;
    }
  }
  int byte(utf8proc_int32_t c) const {
    return c >= 0 && c < static_cast<int>(bytes_.size()) ? bytes_[static_cast<size_t>(c)] : -1;
  }

 private:
  std::array<int, 324> bytes_;
};

// Calls f(code point) for each character; malformed bytes come as -1, one call for each ill-formed sequence.
template <class F>
void for_each_code_point(std::string_view s, F f) {
  const auto* p = reinterpret_cast<const utf8proc_uint8_t*>(s.data());
  const utf8proc_ssize_t n = static_cast<utf8proc_ssize_t>(s.size());
  for (utf8proc_ssize_t i = 0; i < n;) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t used = utf8proc_iterate(p + i, n - i, &c);
    f(used > 0 ? c : -1);
    i += used > 0 ? used : 1;
  }
}

void append_utf8(std::string* out, utf8proc_int32_t c) {
  utf8proc_uint8_t buffer[4];
  out->append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(utf8proc_encode_char(c, buffer)));
}

std::string map_utf8(std::string_view s, int options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(s.data()), static_cast<utf8proc_ssize_t>(s.size()), &out,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  return n < 0 ? std::string(s) : std::string(reinterpret_cast<const char*>(out), static_cast<size_t>(n));
}

bool is_white_space(utf8proc_int32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_mark(utf8proc_int32_t c) {
  const utf8proc_category_t g = utf8proc_category(c);
  return g == UTF8PROC_CATEGORY_MN || g == UTF8PROC_CATEGORY_MC || g == UTF8PROC_CATEGORY_ME;
}

// Step 3 of 10.1 on valid UTF-8.
std::string normalise(std::string_view text) {
  const std::string composed = map_utf8(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
  const std::string decomposed = map_utf8(composed, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  std::string out;
  size_t kept = 0;  // length up to the last character that is not white space
  for_each_code_point(decomposed, [&](utf8proc_int32_t c) {
    if (is_mark(c)) return;
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      if (out.empty() || out.back() != ' ') out += ' ';
      return;
    }
    append_utf8(&out, utf8proc_tolower(c));
    if (!is_white_space(c)) kept = out.size();
  });
  if (out == " ") return out;
  size_t begin = 0;
  while (begin < kept) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t used = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(out.data()) + begin,
                                                   static_cast<utf8proc_ssize_t>(kept - begin), &c);
    if (used <= 0 || !is_white_space(c)) break;
    begin += static_cast<size_t>(used);
  }
  return kept > begin ? out.substr(begin, kept - begin) : std::string();
}

struct Token {
  std::string raw;      // as the vocabulary spells it
  bool added = false;   // spelled as text, not in the byte alphabet
  bool present = false;
};

// Key by which tokens share a class.
std::string class_key(const Token& token, const ByteAlphabet& alphabet) {
  std::string text;
  if (token.added) {
    text = token.raw;
  } else {
    bool mapped = true;
    for_each_code_point(token.raw, [&](utf8proc_int32_t c) {
      const int byte = alphabet.byte(c);
      if (byte < 0) mapped = false;
      else text += static_cast<char>(byte);
    });
    if (!mapped) return token.raw;
  }
  bool whole = true;
  for_each_code_point(text, [&](utf8proc_int32_t c) { whole = whole && c >= 0 && c != 0xfffd; });
  if (!whole) return token.raw;
  std::string key = normalise(text);
  return key.empty() ? text : key;
}

Status read_tokens(dom::object root, std::vector<Token>* tokens) {
  dom::object vocab;
  if (root["model"]["vocab"].get(vocab))
    return make_error(Code::kInvalidArgument, "tokenizer.json has no model.vocab object");
  const auto put = [&](int64_t id, std::string_view text, bool added) {
    if (id < 0 || id >= static_cast<int64_t>(tokens->size())) return;
    (*tokens)[static_cast<size_t>(id)] = {std::string(text), added, true};
  };
  for (auto field : vocab) {
    int64_t id = 0;
    if (field.value.get(id))
      return make_error(Code::kInvalidArgument, "tokenizer.json: the id of a token in model.vocab is not an integer");
    put(id, field.key, false);
  }
  dom::array added;
  if (root.at_key("added_tokens").get(added)) return {};
  for (dom::element item : added) {
    int64_t id = 0;
    std::string_view content;
    if (item["id"].get(id) || item["content"].get(content)) {
      return make_error(Code::kInvalidArgument, "tokenizer.json: an entry of added_tokens lacks its id or content");
    }
    put(id, content, true);
  }
  return {};
}

Result<std::vector<int32_t>> parse_classes(std::string_view json, const ModelConfig& config) {
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root)) {
    return make_error(Code::kInvalidArgument, "engram_token_classes.json is not valid JSON: {}",
                      simdjson::error_message(error));
  }
  dom::array list;
  if (root["classes"].get(list))
    return make_error(Code::kInvalidArgument, "engram_token_classes.json holds no list \"classes\"");
  std::vector<int32_t> classes;
  for (dom::element item : list) {
    int64_t id = 0;
    if (item.get(id) || id < 0 || id >= config.engram_compressed_vocab_size) {
      return make_error(Code::kInvalidArgument, "engram_token_classes.json: entry {} is not a class from 0 to {}",
                        classes.size(), config.engram_compressed_vocab_size - 1);
    }
    classes.push_back(static_cast<int32_t>(id));
  }
  if (static_cast<int64_t>(classes.size()) != config.vocab_size) {
    return make_error(Code::kInvalidArgument, "engram_token_classes.json has {} entries; the vocabulary has {} tokens",
                      classes.size(), config.vocab_size);
  }
  return classes;
}

}  // namespace

Result<std::vector<int32_t>> build_engram_classes(std::string_view tokenizer_json, int64_t vocab_size) {
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(tokenizer_json.data(), tokenizer_json.size()).get(root)) {
    return make_error(Code::kInvalidArgument, "tokenizer.json is not valid JSON: {}", simdjson::error_message(error));
  }
  dom::object object;
  if (root.get(object))
    return make_error(Code::kInvalidArgument, "tokenizer.json holds {}; it must hold an object",
                      json_type_name(root.type()));
  std::vector<Token> tokens(static_cast<size_t>(vocab_size));
  DI_RETURN_IF_ERROR(read_tokens(object, &tokens));

  const ByteAlphabet alphabet;
  std::unordered_map<std::string, int32_t> seen;
  std::vector<int32_t> classes;
  classes.reserve(tokens.size());
  for (const Token& token : tokens) {
    if (!token.present) {
      return make_error(
          Code::kInvalidArgument,
          "tokenizer.json has no token with id {}; the model's vocabulary has {} tokens. It belongs to another model",
          classes.size(), vocab_size);
    }
    classes.push_back(seen.emplace(class_key(token, alphabet), static_cast<int32_t>(seen.size())).first->second);
  }
  return classes;
}

Result<std::vector<int32_t>> load_engram_classes(const std::string& directory, const ModelConfig& config) {
  const std::string path = directory + "/engram_token_classes.json";
  Result<std::string> file = read_file(path, kMaxClassesBytes);
  if (file.ok()) {
    Result<std::vector<int32_t>> classes = parse_classes(file.value(), config);
    if (!classes.ok()) return classes.status().with_context(directory);
    return classes;
  }
  if (file.status().code() != Code::kNotFound) return file.status();

  Result<std::string> tokenizer = read_file(directory + "/tokenizer.json", kMaxTokenizerBytes);
  if (!tokenizer.ok()) {
    return make_error(
        tokenizer.status().code(),
        "{} has neither engram_token_classes.json nor a readable tokenizer.json to build the Engram classes from: {}",
        directory, tokenizer.status().message());
  }
  Result<std::vector<int32_t>> classes = build_engram_classes(tokenizer.value(), config.vocab_size);
  if (!classes.ok()) return classes.status().with_context(directory);
  const int64_t count = classes->empty() ? 0 : *std::max_element(classes->begin(), classes->end()) + int64_t{1};
  if (count != config.engram_compressed_vocab_size) {
    return make_error(Code::kFailedPrecondition,
                      "{}: tokenizer.json gives {} Engram classes, but text_config.engram_compressed_vocab_size is {}; "
                      "put the checkpoint's engram_token_classes.json beside it",
                      directory, count, config.engram_compressed_vocab_size);
  }
  return classes;
}

}  // namespace deepinfer::checkpoint
