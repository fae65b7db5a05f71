// tokenizer_fuzz [--seed S] [--rounds N]: random texts through the tokenizer, compared with the definition carried out
// plainly (tests/unit/text/plain_splitter.h and a heap per piece), and through the detokenizer. Prints the seed of a
// failing round.
#include <cstdlib>
#include <random>
#include <string>

#include <fmt/ranges.h>

#include "base/file.h"
#include "tests/unit/text/plain_splitter.h"
#include "text/bpe.h"
#include "text/detokenizer.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::text;

struct Model {
  Tokenizer tokenizer;
  Vocabulary vocabulary;
  Bpe bpe;
};

std::vector<TokenId> encode_plainly(const Bpe& bpe, std::string_view text) {
  std::vector<TokenId> ids;
  size_t begin = 0;
  for (const size_t end : plain_piece_ends(text)) {
    bpe.encode_by_heap(text.substr(begin, end - begin), &ids);
    begin = end;
  }
  return ids;
}

class TextMaker {
 public:
  TextMaker(uint64_t seed, const Vocabulary& vocabulary) : random_(seed), vocabulary_(vocabulary) {}

  std::string make() {
    std::string text;
    const size_t parts = below(below(10) == 0 ? 2000 : 60);
    const uint64_t style = random_();
    for (size_t i = 0; i < parts; ++i) add_part(style, &text);
    for (size_t changes = style >> 8 & 3 ? 0 : 1 + text.size() / 40; changes > 0 && !text.empty(); --changes) {
      text[below(text.size())] = static_cast<char>(random_());
    }
    return text;
  }
  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }

 private:
  void add_part(uint64_t style, std::string* text) {
    switch ((style >> 2 * below(4) & 7)) {
      case 0:
        append_utf8(code_point(), text);
        break;
      case 1:
        text->append(below(30), " \n\ta1=("[below(7)]);
        break;
      case 2:
        append_utf8(0x4e00 + static_cast<uint32_t>(below(0x5200)), text);
        break;
      case 3:
        *text += static_cast<char>('a' + below(26));
        break;
      default:
        *text += vocabulary_.bytes(static_cast<TokenId>(below(static_cast<size_t>(vocabulary_.size()))));
    }
  }
  uint32_t code_point() {
    const uint32_t limits[] = {0x80, 0x800, 0x3100, 0x10000, 0x110000};
    const uint32_t c = static_cast<uint32_t>(below(limits[below(5)]));
    return c >= 0xd800 && c < 0xe000 ? ' ' : c;
  }

  std::mt19937_64 random_;
  const Vocabulary& vocabulary_;
};

bool check(const Model& model, uint64_t seed) {
  TextMaker maker(seed, model.vocabulary);
  const std::string text = maker.make(), repaired = replace_broken_utf8(text);
  const std::vector<TokenId> ids = model.tokenizer.encode(text), expected = encode_plainly(model.bpe, repaired);
  if (ids != expected) {
    fmt::print("seed {}: ids differ\n  expected {}\n  got      {}\n", seed, expected, ids);
    return false;
  }
  Detokenizer detokenizer(model.tokenizer);
  std::string out;
  for (const TokenId id : ids) {
    const std::string_view piece = detokenizer.push(id);
    if (!is_valid_utf8(piece)) {
      fmt::print("seed {}: the detokenizer gave half a character\n", seed);
      return false;
    }
    out += piece;
  }
  if (out != repaired || detokenizer.finish() != 0) {
    fmt::print("seed {}: the text does not come back\n", seed);
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = 1, rounds = 3000;
  for (int i = 1; i + 1 < argc; i += 2) {
    (std::string_view(argv[i]) == "--seed" ? seed : rounds) = std::strtoull(argv[i + 1], nullptr, 10);
  }
  for (const std::string path : {"models/tiny/tokenizer.json", "build/test-data/deepseek_v3/tokenizer.json"}) {
    const Result<std::string> json = read_file(path, Tokenizer::kMaxFileBytes);
    if (!json.ok()) {
      fmt::print("{} is not there: skipped\n", path);
      continue;
    }
    const TokenizerFile file = read_tokenizer_json(json.value()).value();
    Vocabulary vocabulary = Vocabulary::build(file).value();
    Bpe bpe = Bpe::build(file, vocabulary).value();
    const Model model{Tokenizer::parse(json.value()).value(), std::move(vocabulary), std::move(bpe)};
    for (uint64_t round = 0; round < rounds; ++round) {
      if (!check(model, seed + round)) return 1;
    }
    fmt::print("{}: {} texts as defined\n", path, rounds);
  }
}
