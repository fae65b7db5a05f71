#include "text/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <string>

#include <simdjson.h>

namespace deepinfer::text {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr size_t kMaxAddedTokens = 1 << 16;
constexpr std::string_view kSplitNumbers = R"(\p{N}{1,3})";
constexpr std::string_view kSplitCjk = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
constexpr std::string_view kSplitWords =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kInvalidArgument, "tokenizer.json: " + fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kUnsupported, "tokenizer.json: " + fmt::format(format, std::forward<Args>(args)...) +
                                        ". This program reads DeepSeek's byte-level BPE tokenizer only");
}

std::string_view kind_of(element value) {
  switch (value.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "a list";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::BOOL:
      return "a boolean";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

// The member `key` of `parent` as a T; `where` names the parent in messages.
template <class T>
Result<T> member(object parent, std::string_view where, std::string_view key, std::string_view wanted) {
  element value;
  if (parent[key].get(value) != simdjson::SUCCESS)
    return invalid("{}.{} is missing; it must be {}", where, key, wanted);
  T out;
  if (value.get(out) != simdjson::SUCCESS)
    return invalid("{}.{} must be {}, not {}", where, key, wanted, kind_of(value));
  return out;
}

// A flag that may be missing or null, which means false.
Result<bool> flag(object parent, std::string_view where, std::string_view key) {
  element value;
  if (parent[key].get(value) != simdjson::SUCCESS || value.is_null()) return false;
  bool out = false;
  if (value.get(out) != simdjson::SUCCESS)
    return invalid("{}.{} must be true or false, not {}", where, key, kind_of(value));
  return out;
}

bool is_absent(object parent, std::string_view key) {
  element value;
  return parent[key].get(value) != simdjson::SUCCESS || value.is_null();
}

Result<TokenId> token_id(int64_t value, std::string_view what) {
  if (value < 0 || value > Tokenizer::kMaxTokenId) {
    return invalid("{} has id {}; ids go from 0 to {}", what, value, Tokenizer::kMaxTokenId);
  }
  return static_cast<TokenId>(value);
}

// A token's name in messages: cut short, and as JSON would show it.
std::string shown(std::string_view token) {
  std::string out = "\"";
  for (const char c : token.substr(0, 40)) out += static_cast<uint8_t>(c) < 0x20 ? '?' : c;
  return out + (token.size() > 40 ? "...\"" : "\"");
}

Status check_normalizer(object root) {
  if (is_absent(root, "normalizer")) return {};
  DI_ASSIGN_OR_RETURN(const object normalizer, member<object>(root, "top level", "normalizer", "an object or null"));
  DI_ASSIGN_OR_RETURN(const std::string_view type,
                      member<std::string_view>(normalizer, "normalizer", "type", "a string"));
  if (type != "Sequence") return unsupported("it has a normalizer of type \"{}\"", type);
  DI_ASSIGN_OR_RETURN(const array parts, member<array>(normalizer, "normalizer", "normalizers", "a list"));
  if (parts.size() != 0) return unsupported("its normalizer has {} steps; none are expected", parts.size());
  return {};
}

Status check_split(element part, size_t index, std::string_view expected) {
  const std::string where = fmt::format("pre_tokenizer.pretokenizers[{}]", index);
  object split;
  if (part.get(split) != simdjson::SUCCESS) return invalid("{} must be an object, not {}", where, kind_of(part));
  DI_ASSIGN_OR_RETURN(const std::string_view type, member<std::string_view>(split, where, "type", "a string"));
  if (type != "Split") return unsupported("{} is of type \"{}\" where \"Split\" is expected", where, type);
  DI_ASSIGN_OR_RETURN(const object pattern, member<object>(split, where, "pattern", "an object"));
  DI_ASSIGN_OR_RETURN(const std::string_view regex,
                      member<std::string_view>(pattern, where + ".pattern", "Regex", "a string"));
  DI_ASSIGN_OR_RETURN(const std::string_view behavior, member<std::string_view>(split, where, "behavior", "a string"));
  DI_ASSIGN_OR_RETURN(const bool invert, flag(split, where, "invert"));
  if (regex != expected || behavior != "Isolated" || invert) {
    return unsupported("{} splits by the pattern {} ({}), not by DeepSeek's", where, shown(regex), behavior);
  }
  return {};
}

Status check_pre_tokenizer(object root) {
  constexpr std::array kSplits = {kSplitNumbers, kSplitCjk, kSplitWords};
  DI_ASSIGN_OR_RETURN(const object pre, member<object>(root, "top level", "pre_tokenizer", "an object"));
  DI_ASSIGN_OR_RETURN(const std::string_view type, member<std::string_view>(pre, "pre_tokenizer", "type", "a string"));
  if (type != "Sequence") return unsupported("its pre-tokenizer is of type \"{}\", not a sequence", type);
  DI_ASSIGN_OR_RETURN(const array parts, member<array>(pre, "pre_tokenizer", "pretokenizers", "a list"));
  if (parts.size() != kSplits.size() + 1) {
    return unsupported("its pre-tokenizer has {} steps where {} are expected", parts.size(), kSplits.size() + 1);
  }
  size_t index = 0;
  for (const element part : parts) {
    if (index < kSplits.size()) {
      DI_RETURN_IF_ERROR(check_split(part, index, kSplits[index]));
    } else {
      object last;
      if (part.get(last) != simdjson::SUCCESS)
        return invalid("the last pre-tokenizer must be an object, not {}", kind_of(part));
      DI_ASSIGN_OR_RETURN(const std::string_view kind,
                          member<std::string_view>(last, "the last pre-tokenizer", "type", "a string"));
      DI_ASSIGN_OR_RETURN(const bool prefix, flag(last, "the last pre-tokenizer", "add_prefix_space"));
      DI_ASSIGN_OR_RETURN(const bool regex, flag(last, "the last pre-tokenizer", "use_regex"));
      if (kind != "ByteLevel" || prefix || regex) {
        return unsupported(
            "its last pre-tokenizer is \"{}\" (add_prefix_space {}, use_regex {}), not a plain ByteLevel", kind, prefix,
            regex);
      }
    }
    ++index;
  }
  return {};
}

Status check_post_processor(object root) {
  if (is_absent(root, "post_processor")) return {};
  DI_ASSIGN_OR_RETURN(const object post, member<object>(root, "top level", "post_processor", "an object or null"));
  DI_ASSIGN_OR_RETURN(const std::string_view type,
                      member<std::string_view>(post, "post_processor", "type", "a string"));
  if (type != "ByteLevel")
    return unsupported("its post-processor is of type \"{}\" and would add or change tokens", type);
  return {};
}

// Options of the BPE model that change its results and that DeepSeek's files leave off.
Status check_model_options(object model) {
  for (const std::string_view key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    std::string_view text;
    if (!is_absent(model, key) && !(model[key].get(text) == simdjson::SUCCESS && text.empty())) {
      return unsupported("model.{} is set", key);
    }
  }
  for (const std::string_view key : {"byte_fallback", "ignore_merges"}) {
    DI_ASSIGN_OR_RETURN(const bool set, flag(model, "model", key));
    if (set) return unsupported("model.{} is true", key);
  }
  return {};
}

Status read_vocab(object model, TokenizerFile* file) {
  DI_ASSIGN_OR_RETURN(const object vocab, member<object>(model, "model", "vocab", "an object of token: id"));
  file->vocab.reserve(1 << 17);
  for (const auto& [token, value] : vocab) {
    int64_t number = 0;
    if (value.get(number) != simdjson::SUCCESS) {
      return invalid("model.vocab[{}] must be an id, not {}", shown(token), kind_of(value));
    }
    if (token.empty() || token.size() > Tokenizer::kMaxTokenBytes) {
      return invalid("model.vocab[{}] is {} bytes long; 1 to {} are allowed", shown(token), token.size(),
                     Tokenizer::kMaxTokenBytes);
    }
    DI_ASSIGN_OR_RETURN(const TokenId id, token_id(number, shown(token)));
    const size_t index = static_cast<size_t>(id);
    if (index >= file->vocab.size()) file->vocab.resize(index + 1);
    if (file->vocab[index].data() != nullptr) {
      return invalid("tokens {} and {} have the same id {}", shown(file->vocab[index]), shown(token), id);
    }
    file->vocab[index] = token;
  }
  return {};
}

Status read_merges(object model, TokenizerFile* file) {
  DI_ASSIGN_OR_RETURN(const array merges, member<array>(model, "model", "merges", "a list"));
  file->merges.reserve(merges.size());
  for (const element merge : merges) {
    const size_t index = file->merges.size();
    std::string_view text;
    array pair;
    TokenizerFile::Merge out;
    if (merge.get(text) == simdjson::SUCCESS) {
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        return invalid("model.merges[{}] is {}; two tokens with one space between them are expected", index,
                       shown(text));
      }
      out = {text.substr(0, space), text.substr(space + 1)};
    } else if (merge.get(pair) == simdjson::SUCCESS) {
      if (pair.size() != 2 || pair.at(0).get(out.left) != simdjson::SUCCESS ||
          pair.at(1).get(out.right) != simdjson::SUCCESS) {
        return invalid("model.merges[{}] must be a list of two strings", index);
      }
    } else {
      return invalid("model.merges[{}] must be a string or a list of two strings, not {}", index, kind_of(merge));
    }
    file->merges.push_back(out);
  }
  return {};
}

Status read_added(object root, TokenizerFile* file) {
  if (is_absent(root, "added_tokens")) return {};
  DI_ASSIGN_OR_RETURN(const array added, member<array>(root, "top level", "added_tokens", "a list"));
  for (const element entry : added) {
    const std::string where = fmt::format("added_tokens[{}]", file->added.size());
    if (file->added.size() == kMaxAddedTokens) return invalid("more than {} added tokens", kMaxAddedTokens);
    object token;
    if (entry.get(token) != simdjson::SUCCESS) return invalid("{} must be an object, not {}", where, kind_of(entry));
    DI_ASSIGN_OR_RETURN(const int64_t number, member<int64_t>(token, where, "id", "a whole number"));
    DI_ASSIGN_OR_RETURN(const std::string_view content, member<std::string_view>(token, where, "content", "a string"));
    DI_ASSIGN_OR_RETURN(const TokenId id, token_id(number, where));
    if (content.empty() || content.size() > Tokenizer::kMaxTokenBytes) {
      return invalid("{}.content is {} bytes long; 1 to {} are allowed", where, content.size(),
                     Tokenizer::kMaxTokenBytes);
    }
    for (const std::string_view key : {"single_word", "lstrip", "rstrip"}) {
      DI_ASSIGN_OR_RETURN(const bool set, flag(token, where, key));
      if (set) return unsupported("{} ({}) has {} set", where, shown(content), key);
    }
    DI_ASSIGN_OR_RETURN(const bool special, flag(token, where, "special"));
    DI_ASSIGN_OR_RETURN(const bool normalized, flag(token, where, "normalized"));
    file->added.push_back({id, content, special, normalized});
  }
  return {};
}

}  // namespace

Result<TokenizerFile> read_tokenizer_json(std::string_view json) {
  if (json.size() > Tokenizer::kMaxFileBytes) {
    return invalid("{} bytes long; at most {} are read", json.size(), Tokenizer::kMaxFileBytes);
  }
  struct Storage {
    simdjson::dom::parser parser{Tokenizer::kMaxFileBytes};
  };
  auto storage = std::make_shared<Storage>();
  object root;
  element document;
  if (const auto error = storage->parser.parse(json.data(), json.size()).get(document); error != simdjson::SUCCESS) {
    if (error == simdjson::MEMALLOC)
      return Status(Code::kResourceExhausted, "tokenizer.json: not enough memory to parse it");
    return invalid("not valid JSON ({})", simdjson::error_message(error));
  }
  if (document.get(root) != simdjson::SUCCESS) return invalid("must be an object, not {}", kind_of(document));

  TokenizerFile file;
  DI_ASSIGN_OR_RETURN(const object model, member<object>(root, "top level", "model", "an object"));
  if (!is_absent(model, "type")) {  // old files leave it out
    DI_ASSIGN_OR_RETURN(const std::string_view type, member<std::string_view>(model, "model", "type", "a string"));
    if (type != "BPE") return unsupported("its model is \"{}\"", type);
  }
  DI_RETURN_IF_ERROR(check_model_options(model));
  DI_RETURN_IF_ERROR(check_normalizer(root));
  DI_RETURN_IF_ERROR(check_pre_tokenizer(root));
  DI_RETURN_IF_ERROR(check_post_processor(root));
  DI_RETURN_IF_ERROR(read_vocab(model, &file));
  DI_RETURN_IF_ERROR(read_merges(model, &file));
  DI_RETURN_IF_ERROR(read_added(root, &file));
  file.storage = std::move(storage);
  return file;
}

}  // namespace deepinfer::text
