#include "text/tokenizer.h"

#include <algorithm>
#include <mutex>

#include "base/file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/encoder.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace deepinfer::text {

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  Encoder encoder;
  // Two passes, as in Hugging Face's tokenizers: first tokens without the `normalized` flag, then the others in what is
  // left.
  AddedTokenMatcher added_first, added_second;

  // Scratch memory with its word cache, lent to one call at a time; kept for the next one.
  class Lease {
   public:
    explicit Lease(const Impl* impl) : impl_(impl) {
      const std::lock_guard lock(impl_->mutex);
      if (impl_->idle.empty()) return;
      scratch_ = std::move(impl_->idle.back());
      impl_->idle.pop_back();
    }
    ~Lease() {
      if (scratch_ == nullptr) return;
      const std::lock_guard lock(impl_->mutex);
      if (impl_->idle.size() < kMaxIdle) impl_->idle.push_back(std::move(scratch_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Encoder::Scratch* get() {
      if (scratch_ == nullptr) scratch_ = std::make_unique<Encoder::Scratch>();
      return scratch_.get();
    }

   private:
    const Impl* impl_;
    std::unique_ptr<Encoder::Scratch> scratch_;
  };
  static constexpr size_t kMaxIdle = 16;
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Encoder::Scratch>> idle;

  // Cuts at the matches of `matcher` and gives the stretches between them to `rest`.
  template <class Rest>
  static void cut(const AddedTokenMatcher& matcher, std::string_view text, std::vector<TokenId>* ids, Rest rest) {
    size_t begin = 0;
    while (const auto match = matcher.empty() ? std::nullopt : matcher.find(text, begin)) {
      if (match->begin > begin) rest(text.substr(begin, match->begin - begin));
      ids->push_back(match->id);
      begin = match->end;
    }
    if (begin < text.size()) rest(text.substr(begin));
  }

  // Appends the ids of valid UTF-8.
  void encode(std::string_view text, AddedTokens added, Encoder::Scratch* scratch, std::vector<TokenId>* ids) const {
    if (added == AddedTokens::kAsText) return encoder.encode(text, scratch, ids);
    cut(added_first, text, ids, [&](std::string_view left) {
      cut(added_second, left, ids, [&](std::string_view plain) { encoder.encode(plain, scratch, ids); });
    });
  }
};

namespace {

// `text` itself if it is valid UTF-8, else its repaired copy in *storage.
std::string_view repaired(std::string_view text, std::string* storage) {
  if (is_valid_utf8(text)) return text;
  *storage = replace_broken_utf8(text);
  return *storage;
}

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string json, read_file(path, kMaxFileBytes));
  Result<Tokenizer> tokenizer = parse(json);
  if (!tokenizer.ok()) return tokenizer.status().with_context(path);
  return tokenizer;
}

Result<Tokenizer> Tokenizer::parse(std::string_view json) {
  DI_ASSIGN_OR_RETURN(const TokenizerFile file, read_tokenizer_json(json));
  auto impl = std::make_shared<Impl>();
  DI_ASSIGN_OR_RETURN(impl->vocabulary, Vocabulary::build(file));
  DI_ASSIGN_OR_RETURN(Bpe bpe, Bpe::build(file, impl->vocabulary));
  impl->encoder = Encoder(std::move(bpe), impl->vocabulary);
  for (const TokenizerFile::Added& added : file.added) {
    (added.normalized ? impl->added_second : impl->added_first).add(added.content, added.id);
  }
  impl->added_first.finish();
  impl->added_second.finish();
  return Tokenizer(std::move(impl));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, AddedTokens added) const {
  std::string storage;
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4);
  Impl::Lease lease(impl_.get());
  impl_->encode(repaired(text, &storage), added, lease.get(), &ids);
  return ids;
}

Encoding Tokenizer::encode_with_ranges(std::string_view text, AddedTokens added) const {
  Encoding encoding;
  encoding.ids = encode(text, added);
  encoding.ranges.reserve(encoding.ids.size());
  size_t at = 0;
  for (const TokenId id : encoding.ids) {  // every token stands for its own bytes, so lengths are enough
    const size_t end = at + token_bytes(id).size();
    encoding.ranges.push_back({at, end});
    at = end;
  }
  return encoding;
}

Result<std::vector<TokenId>> Tokenizer::encode_prompt(std::string_view prompt,
                                                      std::span<const TrustedSpan> spans) const {
  std::vector<TokenId> ids;
  ids.reserve(prompt.size() / 4);
  std::string storage;
  Impl::Lease lease(impl_.get());
  size_t begin = 0;
  for (const TrustedSpan& span : spans) {
    if (span.begin < begin || span.end < span.begin || span.end > prompt.size()) {
      return make_error(Code::kInvalidArgument,
                        "the trusted span [{}, {}) is out of order or outside the prompt of {} bytes", span.begin,
                        span.end, prompt.size());
    }
    if (!exists(span.id))
      return make_error(Code::kInvalidArgument, "the trusted span at byte {} has the unknown token id {}", span.begin,
                        span.id);
    impl_->encode(repaired(prompt.substr(begin, span.begin - begin), &storage), AddedTokens::kAsText, lease.get(),
                  &ids);
    ids.push_back(span.id);
    begin = span.end;
  }
  impl_->encode(repaired(prompt.substr(begin), &storage), AddedTokens::kAsText, lease.get(), &ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string out;
  for (const TokenId id : ids) out += token_bytes(id);
  return out;
}

std::string_view Tokenizer::token_bytes(TokenId id) const { return impl_->vocabulary.bytes(id); }

std::string Tokenizer::token_string(TokenId id) const {
  return is_added(id) ? std::string(token_bytes(id)) : spell_bytes(token_bytes(id));
}

TokenId Tokenizer::vocab_size() const { return impl_->vocabulary.size(); }
bool Tokenizer::exists(TokenId id) const { return impl_->vocabulary.exists(id); }
bool Tokenizer::is_added(TokenId id) const { return impl_->vocabulary.is_added(id); }
bool Tokenizer::is_flagged_special(TokenId id) const { return impl_->vocabulary.is_flagged_special(id); }
std::optional<TokenId> Tokenizer::find_added(std::string_view content) const {
  return impl_->vocabulary.find_added(content);
}
std::optional<TokenId> Tokenizer::find_ordinary(std::string_view bytes) const {
  return impl_->vocabulary.find_ordinary(bytes);
}
std::span<const TokenId> Tokenizer::added_ids() const { return impl_->vocabulary.added_ids(); }
size_t Tokenizer::max_token_bytes() const { return impl_->vocabulary.max_token_bytes(); }

void Tokenizer::forget_words() const {
  const std::lock_guard lock(impl_->mutex);
  for (const auto& scratch : impl_->idle) scratch->cache.clear();
}

std::vector<TokenRange> to_code_points(std::string_view text, std::span<const TokenRange> byte_ranges) {
  std::vector<TokenRange> out;
  out.reserve(byte_ranges.size());
  size_t byte = 0, started = 0;  // `started`: characters that begin in text[0, byte)
  const auto advance = [&](size_t to) {
    for (; byte < to; ++byte) started += (static_cast<uint8_t>(text[byte]) & 0xc0) != 0x80;
    return started;
  };
  for (const TokenRange& range : byte_ranges) {
    const bool empty = range.begin == range.end;
    const size_t begin = advance(range.begin) - (!empty && (static_cast<uint8_t>(text[range.begin]) & 0xc0) == 0x80);
    out.push_back({begin, advance(range.end)});
  }
  return out;
}

}  // namespace deepinfer::text
