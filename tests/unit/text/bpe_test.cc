#include "text/bpe.h"

#include <memory>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "text/utf8.h"

namespace deepinfer::text {
namespace {

// A model of random merges over a few letters and one character of three bytes, trained-like (each merge makes a new
// token out of earlier ones) or with tokens that several merges make.
struct RandomModel {
  std::vector<std::string> storage;
  TokenizerFile file;
  Vocabulary vocabulary;
  Bpe bpe;
};

std::unique_ptr<RandomModel> random_model(std::mt19937_64& random, size_t merges, bool regular) {
  auto model = std::make_unique<RandomModel>();
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<std::string> tokens = {"a", "b", "c", "\xe4", "\xb8", "\xad"};  // in bytes
  const size_t letters = 1 + below(6);
  tokens.resize(letters);
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<std::string> made;
  for (size_t tries = 0; made.size() < merges && tries < 20 * merges; ++tries) {
    const std::pair<std::string, std::string> pair = {tokens[below(tokens.size())], tokens[below(tokens.size())]};
    const std::string both = pair.first + pair.second;
    const bool known = std::find(tokens.begin(), tokens.end(), both) != tokens.end();
    if (both.size() > 40 || (known && regular) || std::find(pairs.begin(), pairs.end(), pair) != pairs.end()) continue;
    pairs.push_back(pair);
    if (!known) tokens.push_back(both);
    made.push_back(both);
  }
  for (int byte = 0; byte < 256; ++byte) model->storage.push_back(spell_bytes(std::string(1, static_cast<char>(byte))));
  for (size_t i = letters; i < tokens.size(); ++i) model->storage.push_back(spell_bytes(tokens[i]));
  const size_t vocab = model->storage.size();
  for (const auto& [left, right] : pairs) {
    model->storage.push_back(spell_bytes(left));
    model->storage.push_back(spell_bytes(right));
  }
  for (size_t i = 0; i < vocab; ++i) model->file.vocab.push_back(model->storage[i]);
  for (size_t i = vocab; i < model->storage.size(); i += 2)
    model->file.merges.push_back({model->storage[i], model->storage[i + 1]});
  model->vocabulary = Vocabulary::build(model->file).value();
  model->bpe = Bpe::build(model->file, model->vocabulary).value();
  return model;
}

// All pieces at once, in every way that this machine has.
void expect_equal_encodings(const Bpe& bpe, const std::vector<std::string>& pieces) {
  for (const Bpe::Way way : {Bpe::Way::kPortable, Bpe::Way::kAvx2, Bpe::Way::kAvx512}) {
    if (!Bpe::can_run(way)) continue;
    std::vector<std::vector<TokenId>> fast;
    std::vector<Bpe::Job> jobs;
    for (const std::string& piece : pieces) fast.emplace_back(piece.size());
    for (size_t i = 0; i < pieces.size(); ++i)
      jobs.push_back({pieces[i].data(), static_cast<uint32_t>(pieces[i].size()), 0, fast[i].data()});
    Bpe::Scratch scratch;
    bpe.encode(jobs, way, &scratch);
    for (size_t i = 0; i < pieces.size(); ++i) {
      std::vector<TokenId> slow;
      bpe.encode_by_heap(pieces[i], &slow);
      fast[i].resize(jobs[i].count);
      ASSERT_EQ(fast[i], slow) << pieces[i] << " in way " << static_cast<int>(way);
    }
  }
}

TEST(Bpe, EqualsTheDefinitionOnRandomModels) {
  std::mt19937_64 random(11);
  const std::string letters[] = {"a", "b", "c", "中"};
  for (int round = 0; round < 600; ++round) {
    const bool regular = round % 4 != 0;
    const auto model = random_model(random, 1 + random() % 120, regular);
    ASSERT_TRUE(!regular || model->bpe.is_regular());
    std::vector<std::string> pieces(1 + random() % 200);
    const size_t longest = round % 3 == 0 ? 12 : 80;
    for (std::string& piece : pieces) {
      const size_t kinds = 1 + random() % 4;
      for (size_t n = 1 + random() % longest; n > 0; --n) piece += letters[random() % kinds];
    }
    expect_equal_encodings(model->bpe, pieces);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace deepinfer::text
