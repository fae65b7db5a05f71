#include "engine/text_history.h"

#include <algorithm>
#include <utility>

namespace deepinfer::engine {
namespace {

constexpr uint8_t kMetMost = 64;  // counts halve here
constexpr uint8_t kLifeNew = 4, kLifeMost = 32;
constexpr size_t kTogether = 8;  // tokens whose lines are fetched at a time

}  // namespace

// Hashed from the end backwards, so that the longer contexts go on where the shorter ones end.
TextHistory::Keys TextHistory::keys_of(std::span<const int32_t> text) {
  Keys keys;
  keys.first = kContexts.size();
  uint64_t h = 0x9e3779b97f4a7c15;
  size_t n = 0;
  for (size_t k = kContexts.size(); k-- > 0;) {
    const auto length = static_cast<size_t>(kContexts[k]);
    if (text.size() < length) break;
    for (; n < length; ++n) {
      h = (h ^ static_cast<uint32_t>(text[text.size() - 1 - n])) * 0xff51afd7ed558ccd;
      h ^= h >> 29;
    }
    keys.of[k] = (h ^ length) * 0xc4ceb9fe1a85ec53;
    keys.first = k;
  }
  return keys;
}

void TextHistory::fetch(const Keys& keys) const {
  for (size_t k = keys.first; k < kContexts.size(); ++k) __builtin_prefetch(&lines_[line_of(keys.of[k])]);
}

void TextHistory::add(uint64_t key, int32_t token) {
  const auto hash = static_cast<uint32_t>(key);
  std::array<Entry, 4>& line = lines_[line_of(key)].entries;
  const auto at = std::ranges::find_if(line, [hash](const Entry& e) { return e.life > 0 && e.hash == hash; });
  if (at == line.end()) {
    const auto oldest = std::ranges::min_element(line, {}, &Entry::life);
    if (oldest->life > 0) {
      for (Entry& e : line) --e.life;
    }
    *oldest = {.hash = hash, .token = token, .count = 1, .met = 1, .life = kLifeNew};
    return;
  }
  Entry& e = *at;
  e.life = std::min<uint8_t>(kLifeMost, e.life + 1);
  ++e.met;
  if (token == e.token) {
    ++e.count;
  } else if (token == e.rival) {
    ++e.rival_count;
  } else if (e.rival_count <= 1) {
    e.rival = token;
    e.rival_count = 1;
  } else {
    --e.rival_count;
  }
  if (e.rival_count >= e.count) {  // of two that came as often the newer one
    std::swap(e.token, e.rival);
    std::swap(e.count, e.rival_count);
  }
  if (e.met >= kMetMost) {
    e.met /= 2;
    e.count = static_cast<uint8_t>((e.count + 1) / 2);
    e.rival_count /= 2;
  }
}

void TextHistory::append(std::span<const int32_t> text, size_t from) {
  std::array<Keys, kTogether> keys;
  for (size_t i = from; i < text.size(); i += kTogether) {
    const size_t count = std::min(kTogether, text.size() - i);
    for (size_t j = 0; j < count; ++j) {
      keys[j] = keys_of(text.first(i + j));
      fetch(keys[j]);
    }
    for (size_t j = 0; j < count; ++j) {
      for (size_t k = keys[j].first; k < kContexts.size(); ++k) add(keys[j].of[k], text[i + j]);
    }
  }
}

TextHistory::Guess TextHistory::guess(std::span<const int32_t> text) const {
  const Keys keys = keys_of(text);
  fetch(keys);
  for (size_t k = keys.first; k < kContexts.size(); ++k) {
    const auto hash = static_cast<uint32_t>(keys.of[k]);
    for (const Entry& e : lines_[line_of(keys.of[k])].entries) {
      if (e.life == 0 || e.hash != hash) continue;
      return {.token = e.token,
              .context = static_cast<int>(k),
              .share = static_cast<float>(e.count) / static_cast<float>(e.met + 1)};
    }
  }
  return {};
}

std::shared_ptr<TextHistory> TextHistories::of(int32_t tenant) {
  ++uses_;
  for (Entry& e : entries_) {
    if (e.tenant != tenant) continue;
    e.used = uses_;
    return e.history;
  }
  if (entries_.size() == kMost) {
    auto oldest = entries_.end();
    for (auto e = entries_.begin(); e != entries_.end(); ++e) {
      if (e->history.use_count() == 1 && (oldest == entries_.end() || e->used < oldest->used)) oldest = e;
    }
    if (oldest == entries_.end()) return nullptr;
    entries_.erase(oldest);
  }
  entries_.push_back({.tenant = tenant, .used = uses_, .history = std::make_shared<TextHistory>()});
  return entries_.back().history;
}

}  // namespace deepinfer::engine
