#include "recipe/tokenize.h"

#include <algorithm>
#include <mutex>

#include "base/thread_pool.h"
#include "recipe/message_cache.h"

namespace deepinfer::recipe {
namespace {

using text::TokenId;

// New text below this size is not worth waking other threads for.
constexpr size_t kParallelBytesMin = 32 << 10;
constexpr size_t kPieceBytes = 8 << 10;

// Tokenizer files spell the placeholder differently; only its place in the vocabulary matters (spec 1.2).
constexpr std::string_view kImageNames[] = {"<｜deepseek_image｜>", "<｜image｜>", "<｜image2｜>"};

Status no_token(SpecialToken token) {
  return make_error(Code::kFailedPrecondition, "the tokenizer has no token {}, which this prompt needs",
                    special_text(token));
}

// A stretch of plain text or one special token, in prompt order.
struct Item {
  std::string_view text;
  TokenId special = -1;
};

// Where a long stretch may be cut: before a printable ASCII character that follows a newline. No pre-token crosses it.
size_t next_cut(std::string_view text, size_t from) {
  for (size_t i = from; i < text.size(); ++i) {
    if (text[i - 1] == '\n' && text[i] > ' ' && text[i] < 0x7f) return i;
  }
  return text.size();
}

void add_text(std::vector<Item>& items, std::string_view text, bool pieces) {
  while (pieces && text.size() > kPieceBytes) {
    const size_t cut = next_cut(text, kPieceBytes);
    items.push_back({text.substr(0, cut)});
    text.remove_prefix(cut);
  }
  if (!text.empty()) items.push_back({text});
}

}  // namespace

Result<SpecialIds> SpecialIds::find(const text::Tokenizer& tokenizer, Version version) {
  SpecialIds out;
  for (size_t i = 0; i < kSpecialTokens; ++i) {
    out.ids_[i] = tokenizer.find_added(special_text(static_cast<SpecialToken>(i))).value_or(-1);
  }
  TokenId& image = out.ids_[static_cast<size_t>(SpecialToken::kImage)];
  image = -1;
  for (std::string_view name : kImageNames) {
    // V4 has two placeholders; <｜image｜> is the one that prompts use.
    if (version == Version::kV4 && name == kImageNames[0]) continue;
    if (image < 0) image = tokenizer.find_added(name).value_or(-1);
  }
  for (SpecialToken token : {SpecialToken::kBos, SpecialToken::kEos, SpecialToken::kUser, SpecialToken::kAssistant,
                             SpecialToken::kThink, SpecialToken::kEndThink, SpecialToken::kSystem}) {
    const bool optional = token == SpecialToken::kSystem && version == Version::kV4;
    if (out[token] < 0 && !optional) return no_token(token);
  }
  return out;
}

struct PromptEncoder::Impl {
  Impl(text::Tokenizer t, SpecialIds s, Options o)
      : tokenizer(std::move(t)), specials(s), options(o), cache(o.cache_bytes_max), pool(o.threads) {}

  // Ids of the chunks, one vector each.
  Result<std::vector<std::vector<TokenId>>> tokenize(std::span<const PromptChunk> chunks) {
    size_t bytes = 0;
    for (const PromptChunk& chunk : chunks) bytes += chunk.text.size();
    std::unique_lock lock(pool_mutex, std::defer_lock);
    // The pool serves one caller at a time; others do their own work.
    const bool parallel = pool.threads() > 1 && bytes >= kParallelBytesMin && lock.try_lock();
    std::vector<Item> items;
    std::vector<size_t> chunk_end;
    for (const PromptChunk& chunk : chunks) {
      size_t at = 0;
      for (const TrustedSpan& s : chunk.specials) {
        const size_t begin = s.begin - chunk.begin;
        add_text(items, chunk.text.substr(at, begin - at), parallel);
        if (specials[s.token] < 0) return no_token(s.token);
        items.push_back({{}, specials[s.token]});
        at = begin + s.length;
      }
      add_text(items, chunk.text.substr(at), parallel);
      chunk_end.push_back(items.size());
    }
    std::vector<std::vector<TokenId>> parts(items.size());
    const auto work = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Item& item = items[static_cast<size_t>(i)];
        if (item.special < 0) parts[static_cast<size_t>(i)] = tokenizer.encode(item.text);
      }
    };
    if (parallel) {
      pool.parallel_for(static_cast<int64_t>(items.size()), work);
    } else {
      work(0, static_cast<int64_t>(items.size()));
    }
    std::vector<std::vector<TokenId>> out(chunks.size());
    size_t i = 0;
    for (size_t c = 0; c < chunks.size(); ++c) {
      for (; i < chunk_end[c]; ++i) {
        if (items[i].special >= 0) {
          out[c].push_back(items[i].special);
        } else {
          out[c].insert(out[c].end(), parts[i].begin(), parts[i].end());
        }
      }
    }
    return out;
  }

  text::Tokenizer tokenizer;
  SpecialIds specials;
  Options options;
  std::mutex cache_mutex;  // guards cache and the counters
  MessageCache cache;
  uint64_t hits = 0, misses = 0;
  std::mutex pool_mutex;
  ThreadPool pool;
};

PromptEncoder::PromptEncoder(text::Tokenizer tokenizer, SpecialIds specials, Options options)
    : impl_(std::make_unique<Impl>(std::move(tokenizer), specials, options)) {}
PromptEncoder::~PromptEncoder() = default;

Result<EncodedPrompt> PromptEncoder::encode(const Prompt& prompt, std::string_view cache_scope) const {
  EncodedPrompt out;
  out.ids.reserve(prompt.text.size() / 3 + 16);
  const std::vector<PromptChunk> chunks = cut_into_messages(prompt);
  const bool caching = impl_->options.cache_bytes_max > 0;
  MessageCache::NodeId node = MessageCache::root(cache_scope);
  size_t known = 0;
  if (caching) {
    std::lock_guard lock(impl_->cache_mutex);
    while (known < chunks.size() && impl_->cache.find(node, chunks[known], out.ids)) ++known;
    impl_->cache.touch_path();
    impl_->hits += known;
    impl_->misses += chunks.size() - known;
  }
  out.reused = out.ids.size();
  const std::span fresh = std::span(chunks).subspan(known);
  DI_ASSIGN_OR_RETURN(const std::vector<std::vector<TokenId>> ids, impl_->tokenize(fresh));
  for (const std::vector<TokenId>& chunk : ids) out.ids.insert(out.ids.end(), chunk.begin(), chunk.end());
  if (caching && !fresh.empty()) {
    std::lock_guard lock(impl_->cache_mutex);
    for (size_t i = 0; i < fresh.size() && impl_->cache.insert(node, fresh[i], ids[i]); ++i) {
    }
    impl_->cache.touch_path();
    impl_->cache.evict();
  }
  if (!prompt.images.empty()) {
    // Only placeholders of the template have this id, so they can be found by value.
    const TokenId image = impl_->specials[SpecialToken::kImage];
    for (size_t i = 0; i < out.ids.size(); ++i) {
      if (out.ids[i] == image) out.image_positions.push_back(i);
    }
  }
  return out;
}

PromptEncoder::Stats PromptEncoder::stats() const {
  std::lock_guard lock(impl_->cache_mutex);
  return {impl_->cache.bytes(), impl_->cache.size(), impl_->hits, impl_->misses, impl_->cache.evictions()};
}

const text::Tokenizer& PromptEncoder::tokenizer() const { return impl_->tokenizer; }

Result<std::vector<TokenSpan>> encode_with_spans(const Prompt& prompt, const text::Tokenizer& tokenizer,
                                                 const SpecialIds& specials) {
  std::vector<TokenSpan> out;
  const std::string_view all = prompt.text;
  size_t at = 0;
  const auto add = [&](size_t end) {
    const text::Encoding encoding = tokenizer.encode_with_ranges(all.substr(at, end - at));
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      out.push_back({encoding.ids[i], at + encoding.ranges[i].begin, at + encoding.ranges[i].end});
    }
  };
  for (const TrustedSpan& s : prompt.specials) {
    add(s.begin);
    if (specials[s.token] < 0) return no_token(s.token);
    out.push_back({specials[s.token], s.begin, s.begin + s.length});
    at = s.begin + s.length;
  }
  add(all.size());
  return out;
}

}  // namespace deepinfer::recipe
