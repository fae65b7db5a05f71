// MB/s of one thread of the tokenizer, cold (empty word cache) and warm (same text again), beside Hugging Face
// tokenizers on the same texts (bench/tokenizer_texts.h), all in thread CPU time, taking turns. Vocabulary: DeepSeek's
// full-size one if tools/fetch_test_tokenizer.sh can have it; the bundled one, which cuts text into 1.4 (English) to 4
// (Chinese) times as many tokens, in the cases that say so.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <unistd.h>

#include "bench/bench.h"
#include "bench/peer.h"
#include "bench/tokenizer_texts.h"

namespace {

using deepinfer::text::Tokenizer;

struct Vocabulary {
  std::string prefix;  // of case names
  std::string path;
  Tokenizer tokenizer;
};

struct Text {
  std::string name;
  std::string text;
  std::optional<double> cold_goal, warm_goal;
};

struct Timing {
  double cold, warm;
  std::optional<double> peer;
};

double megabytes(const Text& text) { return static_cast<double>(text.text.size()) / 1e6; }

double encode_seconds(const Tokenizer& tokenizer, const std::string& text, size_t* tokens) {
  const double begin = bench::thread_cpu_seconds();
  *tokens = tokenizer.encode(text).size();
  return bench::thread_cpu_seconds() - begin;
}

// Number after "key": in a flat JSON object.
double number_of(const std::string& json, const std::string& key) {
  const size_t at = json.find("\"" + key + "\": ");
  return at == std::string::npos ? 0 : std::strtod(json.c_str() + at + key.size() + 4, nullptr);
}

// Medians over rounds in which cold, warm and peer take turns.
Timing measure(const Vocabulary& vocabulary, const Text& text, int rounds, bench::Peer* peer, const std::string& file) {
  std::vector<double> cold, warm, other;
  for (int round = 0; round < rounds; ++round) {
    size_t tokens = 0;
    for (int i = 0; i < 3; ++i) {
      vocabulary.tokenizer.forget_words();
      cold.push_back(encode_seconds(vocabulary.tokenizer, text.text, &tokens));
      warm.push_back(encode_seconds(vocabulary.tokenizer, text.text, &tokens));
    }
    if (peer == nullptr || round >= 3) continue;
    const std::string answer = peer->ask(fmt::format(R"({{"tokenizer": "{}", "file": "{}"}})", vocabulary.path, file));
    if (static_cast<size_t>(number_of(answer, "tokens")) != tokens) {
      fmt::print(stderr, "{}: {} tokens, but the peer says {}\n", text.name, tokens, answer);
      std::exit(1);
    }
    other.push_back(number_of(answer, "seconds"));
  }
  Timing timing{bench::median(cold), bench::median(warm), std::nullopt};
  if (!other.empty()) timing.peer = bench::median(other);
  return timing;
}

void report(const Vocabulary& vocabulary, const Text& text, const std::string& state, double seconds,
            std::optional<double> peer_seconds, std::optional<double> goal) {
  bench::Line line{.bench = "tokenizer",
                   .name = vocabulary.prefix + text.name + "_" + state,
                   .value = megabytes(text) / seconds,
                   .unit = "MB/s",
                   .goal = goal};
  if (peer_seconds) {
    line.ceiling = megabytes(text) / *peer_seconds;
    line.ceiling_is = "peer: Hugging Face tokenizers 0.23.3";
  }
  bench::report(line);
}

void run(const Vocabulary& vocabulary, int rounds, bench::Peer* peer, const std::string& folder) {
  const std::string english = bench::english_text(1'000'000), code = bench::code_text(1'000'000);
  const std::string chinese = bench::chinese_text(vocabulary.tokenizer, 1'000'000);
  const std::string mixed = bench::mixed_text({english, code, chinese}, 1'000'000);
  std::vector<Text> texts;
  for (const auto& [name, text] :
       {std::pair{"english", &english}, {"code", &code}, {"chinese", &chinese}, {"mixed", &mixed}}) {
    texts.push_back({fmt::format("{}_1mb", name), bench::first_bytes(*text, 1'000'000), 100, 250});
    texts.push_back({fmt::format("{}_50kb", name), bench::first_bytes(*text, 50'000), 100, 250});
  }
  double english_cold = 0;
  for (const Text& text : texts) {
    const std::string file = folder + "/" + text.name + ".txt";
    if (!deepinfer::write_file_atomically(file, text.text).ok()) std::exit(1);
    const int times = text.text.size() < 100'000 ? 4 * rounds : rounds;
    const Timing timing = measure(vocabulary, text, times, peer, file);
    if (text.name == "english_1mb") english_cold = timing.cold;
    report(vocabulary, text, "cold", timing.cold, timing.peer, text.cold_goal);
    report(vocabulary, text, "warm", timing.warm, timing.peer, text.warm_goal);
  }
  const Text unique{"unique_words_1mb", bench::unique_words(1'000'000), 100, std::nullopt};
  const std::string file = folder + "/unique.txt";
  if (!deepinfer::write_file_atomically(file, unique.text).ok()) std::exit(1);
  const Timing timing = measure(vocabulary, unique, rounds, peer, file);
  report(vocabulary, unique, "cold", timing.cold, timing.peer, 100);

  for (const auto& [name, text] : {std::pair{"letter", std::string(1'000'000, 'a')},
                                   {"space", std::string(1'000'000, ' ')},
                                   {"digit", std::string(1'000'000, '7')}}) {
    const Timing repeated = measure(vocabulary, {name, text, {}, {}}, rounds, nullptr, "");
    bench::report({.bench = "tokenizer",
                   .name = fmt::format("{}repeated_{}_1mb_time_over_english", vocabulary.prefix, name),
                   .value = repeated.cold / english_cold,
                   .unit = "ratio",
                   .goal = 2,
                   .higher_is_better = false});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const int rounds = options.quick ? 1 : 5;
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("bench_tokenizer_{}", getpid())).string();
  std::filesystem::create_directories(folder);
  std::optional<bench::Peer> peer =
      bench::Peer::start("build/test-data/tokenizers-venv", "tokenizers==0.23.3", "bench/peers/hf_tokenizers.py");
  if (std::system("tools/fetch_test_tokenizer.sh") != 0)
    fmt::print(stderr, "the full-size vocabulary is not there: its cases are missing\n");
  for (const auto& [prefix, path] :
       {std::pair{"", "build/test-data/deepseek_v3/tokenizer.json"}, {"bundled_", "models/tiny/tokenizer.json"}}) {
    auto tokenizer = Tokenizer::load(path);
    if (tokenizer.ok()) run({prefix, path, tokenizer.value()}, rounds, peer ? &*peer : nullptr, folder);
  }
  std::filesystem::remove_all(folder);
}
