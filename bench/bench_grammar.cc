// Compile and mask times of constrained output, beside llguidance and xgrammar on the same cases, tokens and machine in
// the same run.
//
// Cases: tests/data/grammar/*.jsonl that both ours and llguidance compile. Texts are cut into tokens once, so all
// engines fill the same masks. Times are CPU time of one thread in microseconds; each peer's call overhead (a call of
// its binding that does nothing) is subtracted. A case is compiled from its source text with nothing cached; the masks
// of a compile are filled in the order of its texts. Rounds take turns between the engines; compile times are medians
// per case, mask times medians per mask.
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "bench/bench.h"
#include "bench/peer.h"
#include "grammar/constraint.h"
#include "grammar/json_value.h"
#include "text/tokenizer.h"

namespace {

using namespace deepinfer;
using grammar::ConstraintKind;
using grammar::JsonDocument;
using grammar::JsonValue;

struct Case {
  std::string line, id;
  grammar::Constraint constraint;
  std::vector<std::string> texts;
};

struct Result {
  bool ok = false;
  double compile_us = 0;
  std::vector<double> mask_us;
};

std::optional<Case> read_case(const std::string& line) {
  auto document = JsonDocument::parse(line);
  if (!document.ok()) return std::nullopt;
  const JsonValue& v = document.value().root();
  const JsonValue* kind = v.find("kind");
  const JsonValue* tests = v.find("tests");
  if (kind == nullptr || tests == nullptr) return std::nullopt;
  Case c;
  c.line = line;
  c.id = v.find("id")->text();
  if (kind->text() == "json_schema") {
    c.constraint.kind = ConstraintKind::kJsonSchema;
    grammar::append_json(*v.find("schema"), c.constraint.source);
  } else if (kind->text() == "regex") {
    c.constraint = {ConstraintKind::kRegex, std::string(v.find("regex")->text())};
  } else if (kind->text() == "gbnf") {
    c.constraint = {ConstraintKind::kEbnf, std::string(v.find("grammar")->text())};
  } else {
    return std::nullopt;
  }
  for (uint32_t i = 0; i < tests->size(); ++i) c.texts.emplace_back((*tests)[i].find("text")->text());
  return c;
}

std::vector<Case> read_cases(bool quick) {
  std::vector<Case> cases;
  for (const char* name : {"regex", "grammar", "schemas_ours", "schemas_suite", "schemas_real"}) {
    std::ifstream file(fmt::format("tests/data/grammar/{}.jsonl", name));
    std::string line;
    for (size_t i = 0; std::getline(file, line); ++i) {
      if (quick && i % 8 != 0) continue;
      if (auto c = read_case(line)) cases.push_back(std::move(*c));
    }
  }
  return cases;
}

struct Setting {
  std::string name, path;
  text::Tokenizer tokenizer;
  std::shared_ptr<const grammar::Vocabulary> vocabulary;
};

using Texts = std::vector<std::vector<uint32_t>>;

Result run_ours(const Setting& s, const Case& c, const Texts& texts) {
  Result r;
  const double begin = bench::thread_cpu_seconds();
  auto compiled = grammar::compile_constraint(c.constraint, s.vocabulary);
  r.compile_us = (bench::thread_cpu_seconds() - begin) * 1e6;
  r.ok = compiled.ok();
  if (!r.ok) return r;
  std::vector<uint32_t> mask(s.vocabulary->mask_words());
  for (const auto& tokens : texts) {
    grammar::Matcher m(compiled.value());
    for (size_t i = 0; i <= tokens.size(); ++i) {
      const double start = bench::thread_cpu_seconds();
      if (!m.fill_mask(mask).ok()) return r;
      r.mask_us.push_back((bench::thread_cpu_seconds() - start) * 1e6);
      if (i == tokens.size() || !(mask[tokens[i] >> 5] >> (tokens[i] & 31) & 1) || !m.accept(tokens[i])) break;
    }
  }
  return r;
}

Result run_peer(bench::Peer& peer, const char* engine, const Setting& s, const Case& c, const Texts& texts) {
  std::string job = fmt::format(R"({{"engine": "{}", "tokenizer": "{}", "end": {}, "case": {}, "texts": [)", engine,
                                s.path, s.vocabulary->end_tokens()[0], c.line);
  for (size_t i = 0; i < texts.size(); ++i) {
    job += i == 0 ? "[" : ",[";
    for (size_t k = 0; k < texts[i].size(); ++k) job += fmt::format("{}{}", k == 0 ? "" : ",", texts[i][k]);
    job += "]";
  }
  Result r;
  const std::string answer = peer.ask(job + "]}");
  auto document = JsonDocument::parse(answer);
  if (!document.ok() || document.value().root().find("status") == nullptr) return r;
  const JsonValue& v = document.value().root();
  const auto number = [](const JsonValue& n) { return std::strtod(std::string(n.text()).c_str(), nullptr); };
  const double overhead = number(*v.find("overhead_us"));
  r.ok = v.find("status")->text() == "ok";
  r.compile_us = std::max(0.0, number(*v.find("compile_us")) - overhead);
  const JsonValue& masks = *v.find("mask_us");
  for (uint32_t i = 0; i < masks.size(); ++i) r.mask_us.push_back(std::max(0.0, number(masks[i]) - overhead));
  return r;
}

// The medians of rounds that went the same way.
Result median_of(const std::vector<Result>& rounds) {
  Result m = rounds[0];
  std::vector<double> compile;
  for (const Result& r : rounds) compile.push_back(r.compile_us);
  m.compile_us = bench::median(compile);
  for (size_t i = 0; i < m.mask_us.size(); ++i) {
    std::vector<double> values;
    for (const Result& r : rounds) {
      if (i < r.mask_us.size()) values.push_back(r.mask_us[i]);
    }
    m.mask_us[i] = bench::median(values);
  }
  return m;
}

struct Times {
  std::vector<double> compile, mask;
  void add(const Result& r) {
    compile.push_back(r.compile_us);
    mask.insert(mask.end(), r.mask_us.begin(), r.mask_us.end());
  }
};

struct Quantile {
  const char* name;
  double p, compile_goal, mask_goal;
};
constexpr Quantile kQuantiles[] = {{"p50", 0.5, 0.6, 0.6}, {"p99", 0.99, 0.6, 0.7}, {"max", 1.0, 1.0, 1.0}};

void report(const std::string& name, const std::vector<double>& ours, const std::vector<double>& peer,
            const char* peer_name, double p, std::optional<double> goal) {
  bench::Line line{.bench = "grammar", .name = name, .value = bench::quantile(ours, p), .unit = "us"};
  if (!peer.empty()) line.ceiling = bench::quantile(peer, p);
  line.ceiling_is = peer_name;
  line.goal = goal;
  line.goal_is_ratio = true;
  line.higher_is_better = false;
  bench::report(line);
}

void measure(const Setting& s, const std::vector<Case>& cases, int rounds, std::optional<bench::Peer>& ll,
             std::optional<bench::Peer>& xg) {
  Times ours, theirs, ours_beside_xg, xgrammar;
  const bool trace = std::getenv("BENCH_GRAMMAR_TRACE") != nullptr;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    Texts texts;
    for (const std::string& t : c.texts) {
      const auto ids = s.tokenizer.encode(t);
      texts.emplace_back(ids.begin(), ids.end());
    }
    std::vector<Result> own, other, third;
    for (int round = 0; round < rounds; ++round) {
      own.push_back(run_ours(s, c, texts));
      if (ll) other.push_back(run_peer(*ll, "llguidance", s, c, texts));
    }
    const Result a = median_of(own), b = other.empty() ? Result{} : median_of(other);
    if (trace) {
      std::fprintf(stderr, "%s %s ours %.1f max mask %.1f | ll %d %.1f max mask %.1f\n", s.name.c_str(), c.id.c_str(),
                   a.compile_us, bench::quantile(a.mask_us, 1), b.ok, b.compile_us, bench::quantile(b.mask_us, 1));
    }
    if (a.ok && b.ok) {
      ours.add(a);
      theirs.add(b);
    }
    // xgrammar takes seconds for some cases: a sample of them, once.
    if (!xg || i % 8 != 0) continue;
    const Result x = run_peer(*xg, "xgrammar", s, c, texts);
    if (a.ok && x.ok) {
      ours_beside_xg.add(a);
      xgrammar.add(x);
    }
  }
  for (const Quantile& q : kQuantiles) {
    report(fmt::format("{}_compile_{}", s.name, q.name), ours.compile, theirs.compile, "llguidance 1.9.1", q.p,
           q.compile_goal);
    report(fmt::format("{}_mask_{}", s.name, q.name), ours.mask, theirs.mask, "llguidance 1.9.1", q.p, q.mask_goal);
  }
  report(s.name + "_compile_p50_beside_xgrammar", ours_beside_xg.compile, xgrammar.compile, "xgrammar 0.2.9", 0.5,
         std::nullopt);
  report(s.name + "_mask_p50_beside_xgrammar", ours_beside_xg.mask, xgrammar.mask, "xgrammar 0.2.9", 0.5, std::nullopt);
}

std::optional<Setting> load(const std::string& name, const std::string& path) {
  auto tokenizer = text::Tokenizer::load(path);
  if (!tokenizer.ok()) return std::nullopt;
  auto vocabulary = grammar::Vocabulary::from_tokenizer(tokenizer.value());
  if (!vocabulary.ok()) return std::nullopt;
  return Setting{name, path, tokenizer.value(), vocabulary.value()};
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const std::vector<Case> cases = read_cases(options.quick);
  const char* packages = "llguidance==1.9.1 xgrammar==0.2.9 numpy";
  auto ll = bench::Peer::start("build/test-data/grammar-venv", packages, "bench/peers/grammar_masks.py");
  auto xg = bench::Peer::start("build/test-data/grammar-venv", packages, "bench/peers/grammar_masks.py");
  const int rounds = options.quick ? 1 : 3;
  if (auto s = load("bundled", "models/tiny/tokenizer.json")) measure(*s, cases, rounds, ll, xg);
  if (std::system("tools/fetch_test_tokenizer.sh >&2") == 0) {
    if (auto s = load("128k", "build/test-data/deepseek_v3/tokenizer.json")) measure(*s, cases, rounds, ll, xg);
  }
  return 0;
}
