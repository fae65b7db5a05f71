#include "grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

#include "grammar/vocabulary_impl.h"
#include "text/tokenizer.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kTokensMax = 1 << 21;

// ASCII, printable, no letter, digit or space; not the quote and the backslash, which plain text does not hold.
bool is_punctuation(uint8_t b) {
  const bool alphanumeric = (b >= '0' && b <= '9') || ((b | 32) >= 'a' && (b | 32) <= 'z');
  return b > 0x20 && b < 0x7f && !alphanumeric && b != '"' && b != '\\';
}

void set_bit(std::vector<uint32_t>& words, uint32_t token) { words[token >> 5] |= 1u << (token & 31); }

// The number of characters of plain text (whole UTF-8 characters, no quote, backslash or control character); -1 for
// other text.
int plain_length(std::string_view s) {
  int count = 0;
  for (size_t i = 0; i < s.size(); ++count) {
    const auto b = static_cast<unsigned char>(s[i]);
    if (b < 0x20 || b == '"' || b == '\\') return -1;
    const size_t size = b < 0x80                ? 1
                        : b >= 0xc2 && b < 0xe0 ? 2
                        : b >= 0xe0 && b < 0xf0 ? 3
                        : b >= 0xf0 && b < 0xf5 ? 4
                                                : 0;
    if (size == 0 || i + size > s.size()) return -1;
    for (size_t k = 1; k < size; ++k) {
      const auto c = static_cast<unsigned char>(s[i + k]);
      if ((c & 0xc0) != 0x80) return -1;
      if (k == 1 && ((b == 0xe0 && c < 0xa0) || (b == 0xf0 && c < 0x90) || (b == 0xed && c >= 0xa0) ||
                     (b == 0xf4 && c >= 0x90))) {
        return -1;
      }
    }
    i += size;
  }
  return count;
}

// `sorted`: token ids in the order of their bytes. Tokens with equal bytes are chained in next_same.
Trie make_trie(const std::vector<Vocabulary::Entry>& entries, const std::vector<uint32_t>& sorted,
               std::vector<uint32_t>& next_same) {
  Trie trie;
  std::vector<uint32_t> path;  // open nodes
  const std::string* last = nullptr;
  auto close = [&](size_t depth) {
    while (path.size() > depth) {
      trie.nodes[path.back()].end = static_cast<uint32_t>(trie.nodes.size());
      path.pop_back();
    }
  };
  for (uint32_t token : sorted) {
    const std::string& s = entries[token].bytes;
    size_t common = 0;
    if (last != nullptr) {
      common = static_cast<size_t>(std::mismatch(s.begin(), s.end(), last->begin(), last->end()).first - s.begin());
    }
    close(common);
    for (size_t i = common; i < s.size(); ++i) {
      path.push_back(static_cast<uint32_t>(trie.nodes.size()));
      trie.nodes.push_back({0, -1, static_cast<uint16_t>(i + 1), static_cast<uint8_t>(s[i])});
    }
    Trie::Node& node = trie.nodes[path.back()];
    if (node.token >= 0) next_same[token] = static_cast<uint32_t>(node.token);
    node.token = static_cast<int32_t>(token);
    last = &s;
  }
  close(0);
  return trie;
}

}  // namespace

Vocabulary::Vocabulary(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Vocabulary::~Vocabulary() = default;

Result<std::shared_ptr<const Vocabulary>> Vocabulary::create(std::vector<Entry> entries,
                                                             std::vector<uint32_t> end_tokens) {
  if (entries.empty() || entries.size() > kTokensMax) {
    return make_error(Code::kInvalidArgument, "a vocabulary of {} tokens cannot be used for grammars (1 to {})",
                      entries.size(), kTokensMax);
  }
  auto impl = std::make_unique<Impl>();
  Impl& v = *impl;
  v.entries = std::move(entries);
  v.end_tokens = std::move(end_tokens);
  v.is_end.resize(v.entries.size());
  for (uint32_t t : v.end_tokens) {
    if (t >= v.entries.size()) {
      return make_error(Code::kInvalidArgument, "end token {} is outside the vocabulary of {} tokens", t,
                        v.entries.size());
    }
    v.is_end[t] = true;
  }
  std::vector<uint32_t> ids[kParts], other;
  const size_t words = (v.entries.size() + 31) / 32;
  v.plain.assign(kPartLength[0], std::vector<uint32_t>(words));
  std::vector<uint32_t> punctuated[128], comma, quote_comma, bracket_comma;
  for (uint8_t b = 0x21; b < 0x7f; ++b) {
    if (is_punctuation(b)) v.has_punctuation[b].resize(words);
  }
  for (uint32_t t = 0; t < v.entries.size(); ++t) {
    const Entry& e = v.entries[t];
    if (e.added && !v.is_end[t] && !e.bytes.empty()) v.added_tokens.push_back({e.bytes, t});
    if (e.added || e.bytes.empty() || v.is_end[t]) continue;
    int part = 0;
    while (part < kParts && e.bytes.size() > kPartLength[part]) ++part;
    if (part == kParts) {
      return make_error(Code::kUnsupported, "token {} has {} bytes; grammars take at most {}", t, e.bytes.size(),
                        kPartLength[kParts - 1]);
    }
    ids[part].push_back(t);
    if (const size_t last = e.bytes.rfind(','); last != std::string::npos) {
      comma.push_back(t);
      if (e.bytes.find('"') < last) quote_comma.push_back(t);
      if (e.bytes.find('[') < last) bracket_comma.push_back(t);
    }
    if (part != 0) continue;
    const int length = plain_length(e.bytes);
    if (length < 0) {
      other.push_back(t);
      continue;
    }
    for (auto k = static_cast<size_t>(length) - 1; k < kPartLength[0]; ++k) set_bit(v.plain[k], t);
    for (unsigned char b : e.bytes) {
      if (b >= 0x80 || v.has_punctuation[b].empty() || v.has_punctuation[b][t >> 5] >> (t & 31) & 1) continue;
      set_bit(v.has_punctuation[b], t);
      punctuated[b].push_back(t);
    }
  }
  v.next_same.assign(v.entries.size(), Impl::kNoToken);
  auto build = [&](std::vector<uint32_t>& tokens) {
    std::sort(tokens.begin(), tokens.end(), [&](uint32_t a, uint32_t b) {
      return v.entries[a].bytes != v.entries[b].bytes ? v.entries[a].bytes < v.entries[b].bytes : a > b;
    });
    return make_trie(v.entries, tokens, v.next_same);
  };
  for (int p = 0; p < kParts; ++p) v.parts[p] = build(ids[p]);
  for (uint32_t i = 0; i < v.parts[0].nodes.size(); i = v.parts[0].nodes[i].end) {
    v.top_begin[v.parts[0].nodes[i].byte] = i;
    v.top_end[v.parts[0].nodes[i].byte] = v.parts[0].nodes[i].end;
  }
  v.not_plain = build(other);
  v.with_comma = build(comma);
  v.quote_comma = build(quote_comma);
  v.bracket_comma = build(bracket_comma);
  for (uint8_t b = 0; b < 128; ++b) {
    v.with_punctuation[b] = build(punctuated[b]);
    if (b < 0x20 || b == '"' || b == '\\' || is_punctuation(b)) v.indexed.add(b);
  }
  for (uint32_t t : v.next_same) v.has_same |= t != Impl::kNoToken;
  RxArena rx;
  LocalMasks masks(v, rx);
  const RxBase& base = RxBase::get();
  v.base.resize(base.size * kParts);
  ByteSet after;  // what follows a string, number or blank in JSON
  for (char c : {' ', '\t', '\n', '\r', ',', ':', '}', ']'}) after.add(static_cast<uint8_t>(c));
  for (RxId r = 0; r < base.size; ++r) {
    for (int p = 0; p < kParts; ++p) {
      LocalMask& m = v.base[r * kParts + static_cast<size_t>(p)];
      if (r == kRxNone || r == kRxEmpty) continue;
      m = masks.make(r, p);
      if (r != kRxAnything && rx.node(r).kind != RxKind::kRepeat) masks.look_for(p, after, m);
    }
  }
  return std::shared_ptr<const Vocabulary>(new Vocabulary(std::move(impl)));
}

Result<std::shared_ptr<const Vocabulary>> Vocabulary::from_tokenizer(const text::Tokenizer& tokenizer,
                                                                     std::vector<uint32_t> end_tokens) {
  if (end_tokens.empty()) {
    const std::optional<text::TokenId> end = tokenizer.find_added("<｜end▁of▁sentence｜>");
    if (!end)
      return make_error(Code::kInvalidArgument, "the tokenizer has no token <｜end▁of▁sentence｜>; name the end token");
    end_tokens.push_back(static_cast<uint32_t>(*end));
  }
  std::vector<Entry> entries(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto id = static_cast<text::TokenId>(i);
    if (tokenizer.exists(id)) entries[i] = {std::string(tokenizer.token_bytes(id)), tokenizer.is_added(id)};
  }
  return create(std::move(entries), std::move(end_tokens));
}

const std::vector<AddedToken>& Vocabulary::added_tokens() const { return impl_->added_tokens; }
uint32_t Vocabulary::size() const { return static_cast<uint32_t>(impl_->entries.size()); }
std::string_view Vocabulary::bytes(uint32_t token) const { return impl_->entries[token].bytes; }
bool Vocabulary::is_added(uint32_t token) const { return impl_->entries[token].added; }
const std::vector<uint32_t>& Vocabulary::end_tokens() const { return impl_->end_tokens; }

}  // namespace deepinfer::grammar
