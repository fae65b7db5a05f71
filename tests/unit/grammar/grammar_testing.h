// What the tests of grammars and matchers share.
#pragma once

#include <bit>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/constraint.h"
#include "grammar/matcher.h"
#include "text/tokenizer.h"

namespace deepinfer::grammar {

inline const text::Tokenizer& bundled_tokenizer() {
  static const text::Tokenizer tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json").value();
  return tokenizer;
}

inline std::shared_ptr<const Vocabulary> bundled_vocabulary() {
  static const std::shared_ptr<const Vocabulary> vocabulary = Vocabulary::from_tokenizer(bundled_tokenizer()).value();
  return vocabulary;
}

inline std::shared_ptr<Compiled> compile(const Constraint& c, const Limits& limits = {}) {
  auto r = compile_constraint(c, bundled_vocabulary(), limits);
  EXPECT_TRUE(r.ok()) << r.status().to_string() << "\n" << c.source.substr(0, 200);
  return r.ok() ? r.value() : nullptr;
}

inline bool matches(const std::shared_ptr<Compiled>& compiled, std::string_view text) {
  Matcher m(compiled);
  return m.accept_bytes(text) && m.is_complete();
}

inline std::vector<uint32_t> mask_of(Matcher& m) {
  std::vector<uint32_t> mask(bundled_vocabulary()->mask_words());
  const Status s = m.fill_mask(mask);
  EXPECT_TRUE(s.ok()) << s.to_string();
  return mask;
}

inline bool has_bit(const std::vector<uint32_t>& mask, uint32_t token) { return mask[token >> 5] >> (token & 31) & 1; }

// A random output of at most about `tokens` tokens: masks all the way; once past the length, the end as soon as it may
// come. Empty if the end was not reached.
struct Walk {
  std::vector<uint32_t> tokens;
  std::string text;
  bool ended = false;
};

inline Walk random_walk(const std::shared_ptr<Compiled>& compiled, std::mt19937_64& random, size_t length,
                        size_t give_up) {
  Matcher m(compiled);
  Walk walk;
  const auto& v = *bundled_vocabulary();
  while (walk.tokens.size() < give_up) {
    const std::vector<uint32_t> mask = mask_of(m);
    std::vector<uint32_t> allowed;
    for (uint32_t w = 0; w < mask.size(); ++w) {
      for (uint32_t bits = mask[w]; bits != 0; bits &= bits - 1) {
        allowed.push_back(w * 32 + static_cast<uint32_t>(std::countr_zero(bits)));
      }
    }
    EXPECT_FALSE(allowed.empty()) << "dead end after: " << walk.text;
    if (allowed.empty()) return walk;
    uint32_t token = allowed[random() % allowed.size()];
    const uint32_t end = v.end_tokens()[0];
    if (walk.tokens.size() >= length && has_bit(mask, end)) token = end;
    // Short tokens close what is open sooner.
    if (walk.tokens.size() >= length && token != end) {
      for (int tries = 0; tries < 8; ++tries) {
        const uint32_t other = allowed[random() % allowed.size()];
        if (v.bytes(other).size() < v.bytes(token).size()) token = other;
      }
    }
    EXPECT_TRUE(m.accept(token)) << "token " << token << " after: " << walk.text;
    if (m.is_ended()) {
      walk.ended = true;
      return walk;
    }
    walk.tokens.push_back(token);
    walk.text += v.bytes(token);
  }
  return walk;
}

}  // namespace deepinfer::grammar
