// Drafts of every kind change no answer: random requests on random engines equal the same requests alone without
// drafts, token by token, with their texts, log-probabilities and ends. A few of the mixes always, 1,000 with
// DEEPINFER_TEST_ALL=1; DEEPINFER_MIX_SEED=N runs one engine's mixes.
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "grammar/constraint.h"
#include "sched/draft_governor.h"
#include "tests/engine/support.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

using engine::DraftMode;
using engine::FinishReason;
using engine::Request;
using testing::Collected;

constexpr int kMixesOfAnEngine = 10, kEngines = 100, kEnginesShort = 6, kMixesShort = 3;

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}
  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  int between(int a, int b) { return a + below(b - a + 1); }
  bool one_in(int n) { return below(n) == 0; }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int>(list.size())))];
  }

 private:
  std::mt19937 random_;
};

struct Materials {
  text::Tokenizer tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json").value();
  std::vector<std::shared_ptr<grammar::Compiled>> grammars;

  Materials() {
    auto vocabulary = grammar::Vocabulary::from_tokenizer(tokenizer).value();
    using grammar::ConstraintKind;
    for (const auto& [kind, source] :
         {std::pair(ConstraintKind::kRegex, "[0-9]{3}-(cat|dog)"), {ConstraintKind::kRegex, "(ab|cd)*\\."},
          {ConstraintKind::kJsonSchema,
           R"({"type":"object","properties":{"city":{"type":"string"},"day":{"enum":["today","tomorrow"]}},)"
           R"("required":["city","day"],"additionalProperties":false})"}}) {
      auto compiled = grammar::compile_constraint({.kind = kind, .source = source}, vocabulary);
      EXPECT_TRUE(compiled.ok()) << compiled.status().message();
      grammars.push_back(compiled.value());
    }
  }
};

const Materials& materials() {
  static const Materials m;
  return m;
}

std::vector<int32_t> random_prompt(Random& r, bool trained) {
  static const std::vector<std::string> kTexts = {"Once upon a time there was a mouse who lived in a small house.",
                                                  "Tom and Mia went to the park. They saw a big dog.",
                                                  "{\"city\": \"Paris\", \"day\": \"today\"}",
                                                  "one two three four one two three four one two", "The cat sat."};
  std::vector<int32_t> out = {0};
  const auto add = [&out](const std::vector<int32_t>& more) { out.insert(out.end(), more.begin(), more.end()); };
  while (out.size() < 2 || (!r.one_in(3) && out.size() < 260)) {
    switch (r.below(4)) {
      case 0:
        add(testing::random_prompt(r.between(1, 60), static_cast<uint32_t>(r.below(5))));
        break;
      case 1:
        add(std::vector<int32_t>(static_cast<size_t>(r.between(1, 40)), 500 + r.below(3)));
        break;
      case 2:  // what it says already
        add(std::vector<int32_t>(out.begin() + r.below(static_cast<int>(out.size())), out.end()));
        break;
      default:
        if (!trained) break;
        for (const text::TokenId id : materials().tokenizer.encode(r.of(kTexts)))
          out.push_back(static_cast<int32_t>(id));
    }
  }
  out.resize(std::min<size_t>(out.size(), 300));
  return out;
}

Request random_request(Random& r, bool trained, int sequences) {
  Request q;
  q.prompt = random_prompt(r, trained);
  q.seed = static_cast<uint64_t>(r.below(1 << 20));
  q.max_tokens = r.between(1, 40);
  q.ignore_end = r.one_in(3);
  q.sampling.temperature = r.of(std::vector<double>{0, 0, 0.3, 0.8, 1.3});
  if (r.one_in(4)) q.sampling.top_p = 0.8;
  if (r.one_in(5)) q.sampling.top_k = r.between(1, 30);
  if (r.one_in(6)) q.sampling.min_p = 0.05;
  if (r.one_in(5)) q.sampling.frequency_penalty = r.of(std::vector<float>{-1, 0.4f, 2});
  if (r.one_in(6)) q.sampling.presence_penalty = r.of(std::vector<float>{-0.5f, 1});
  if (r.one_in(6)) q.sampling.repetition_penalty = 1.2f;
  if (r.one_in(6)) q.sampling.logit_bias = {{500, 3.0f}, {13, -100.0f}, {1, 2.0f}};
  if (r.one_in(4)) q.min_tokens = r.between(1, q.max_tokens);
  if (r.one_in(6)) q.stop_tokens = {500, 13, 260};
  if (r.one_in(8)) q.forced_tokens = {500, -1, 501};
  if (r.one_in(3)) {
    q.logprobs = true;
    q.top_logprobs = r.below(3);
  }
  if (r.one_in(10)) q.processed_logprobs = q.logprobs;
  if (r.one_in(6)) q.n = r.between(1, std::min(3, sequences));
  if (r.one_in(8)) q.full_prefill = true;
  if (r.one_in(5)) q.cache = false;
  if (trained && r.one_in(4)) q.stop = {r.of(std::vector<std::string>{" the", "e t", ".", "two three"})};
  if (trained && r.one_in(3)) {
    q.grammar = r.of(materials().grammars);
    q.forced_tokens.clear();
  } else if (r.one_in(10)) {
    for (int t = 400; t < 700; ++t) q.allowed_tokens.push_back(t);
    q.forced_tokens.clear();
  }
  return q;
}

struct Mix {
  Request request;
  int cancel_after = -1;
  bool slow = false;
};

engine::DraftOptions random_drafts(Random& r, std::string* name) {
  engine::DraftOptions d;
  const int kind = r.below(10);
  if (kind == 0) {
    *name = "off";
  } else if (kind <= 5) {
    d.mode = DraftMode::kFixed;
    d.drafts_max = kind;
    *name = fmt::format("fixed {}", kind);
  } else if (kind == 6) {
    d.mode = DraftMode::kFixed;
    d.text = false;
    *name = "fixed 5 of the model";
  } else if (kind == 7) {
    d.mode = DraftMode::kFixed;
    d.model = false;
    d.drafts_max = r.between(1, 16);
    *name = fmt::format("fixed {} of the text", d.drafts_max);
  } else if (kind == 8) {
    d.mode = DraftMode::kConfidence;
    *name = "by confidence";
  } else {  // rows that cost nothing: drafts are worth it at once
    d.mode = DraftMode::kConfidence;
    d.costs = std::make_shared<const sched::DraftCosts>(
        sched::DraftCosts{.forward = {{1, 1.0}, {256, 1.01}}, .round_s = 1e-3, .feed = 0.01});
    *name = "by confidence, cheap rows";
  }
  d.ahead = r.one_in(2);
  if (d.ahead) *name += ", planned ahead";
  return d;
}

// The same requests alone, on an engine without drafts.
class Oracle {
 public:
  std::vector<Collected> answer(const std::string& model, Request q) {
    std::unique_ptr<engine::Engine>& e = engines_[model];
    if (!e) {
      testing::EngineSetup setup;
      setup.model = model;
      setup.sequences = 4;
      e = testing::make_engine(setup);
    }
    q.cache = false;
    return testing::run(*e, q);
  }

 private:
  std::map<std::string, std::unique_ptr<engine::Engine>> engines_;
};

void compare(const Mix& mix, const std::vector<Collected>& got, std::vector<Collected> want) {
  for (size_t s = 0; s < want.size(); ++s) {
    SCOPED_TRACE(::testing::Message() << "answer " << s);
    const Collected& g = got[s];
    Collected& w = want[s];
    ASSERT_EQ(g.ends, 1);
    if (g.reason == FinishReason::kCancelled) {
      ASSERT_GE(mix.cancel_after, 0);
      ASSERT_LE(g.tokens.size(), w.tokens.size());
      w.tokens.resize(g.tokens.size());
      w.logprobs.resize(g.logprobs.size());
    } else {
      EXPECT_EQ(engine::finish_reason_name(g.reason), engine::finish_reason_name(w.reason)) << g.error.message();
      EXPECT_EQ(g.text, w.text);
    }
    EXPECT_EQ(g.tokens, w.tokens);
    EXPECT_EQ(g.logprobs, w.logprobs);
  }
}

struct Counts {
  int64_t mixes = 0, answers = 0, verified = 0, accepted = 0, preempted = 0, cancelled = 0;
};

void run_engine(uint32_t seed, int mixes, Oracle& oracle, Counts* counts) {
  Random r(seed);
  testing::EngineSetup setup;
  const bool trained = !testing::kSanitized && !r.one_in(5);
  setup.model = trained ? "tiny-trained" : "tiny-random";
  setup.sequences = r.of(std::vector<int>{1, 2, 3, 8, 16});
  setup.rows = std::max(setup.sequences, r.of(std::vector<int>{6, 16, 40, 256}));
  setup.blocks = r.one_in(2) ? 0 : r.between(9, 20);
  setup.context = 512;
  setup.threads = r.between(1, 2);
  setup.beside = seed % 2 == 0;
  engine::EngineOptions& o = setup.options;
  o.spill = r.one_in(2);
  o.prefix_cache = !r.one_in(3);
  o.overlap = !r.one_in(4);
  o.samples_max = 3;
  o.queue_events = r.of(std::vector<int>{8, 64, 256});
  if (r.one_in(2)) {
    const auto done = std::make_shared<std::set<std::pair<int64_t, int32_t>>>();  // once each, or nothing goes on
    o.preempt_drill = [seed, done](int64_t id, int32_t tokens) {
      return (static_cast<uint64_t>(id) * 31 + static_cast<uint64_t>(tokens) * 7 + seed) % 41 == 0 &&
             done->emplace(id, tokens).second;
    };
  }
  std::string name;
  o.drafts = random_drafts(r, &name);
  SCOPED_TRACE(::testing::Message() << "DEEPINFER_MIX_SEED=" << seed << ": " << setup.model << ", drafts " << name);
  const auto e = testing::make_engine(setup);
  for (int m = 0; m < mixes; ++m) {
    std::vector<Mix> list(static_cast<size_t>(r.between(1, 7)));
    for (Mix& mix : list) {
      mix.request = random_request(r, trained, setup.sequences);
      if (r.one_in(8)) mix.cancel_after = r.between(1, 12);
      mix.slow = r.one_in(8);
    }
    std::vector<std::vector<Collected>> got(list.size());
    std::vector<std::thread> readers;
    for (size_t i = 0; i < list.size(); ++i) {
      auto stream = e->submit(list[i].request);
      ASSERT_TRUE(stream.ok()) << stream.status().message();
      readers.emplace_back([&, i, s = std::move(stream).value()] {
        if (list[i].slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        got[i] = testing::collect(*s, list[i].request.n, list[i].cancel_after);
      });
    }
    for (std::thread& t : readers) t.join();
    for (size_t i = 0; i < list.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "mix " << m << ", request " << i);
      compare(list[i], got[i], oracle.answer(setup.model, list[i].request));
      counts->answers += list[i].request.n;
      counts->cancelled += got[i][0].reason == FinishReason::kCancelled;
    }
    ++counts->mixes;
  }
  ASSERT_TRUE(e->drain(60).ok());
  EXPECT_TRUE(e->check_accounting().ok()) << e->check_accounting().message();
  const engine::EngineStats stats = e->stats();
  EXPECT_EQ(stats.failed_steps, 0);
  counts->verified += stats.drafts.verify_rows;
  for (const int64_t n : stats.drafts.accepted) counts->accepted += n;
  counts->preempted += stats.scheduler.spilled + stats.scheduler.recomputed;
}

TEST(DraftMix, EqualsAloneWithoutDrafts) {
  const bool all = std::getenv("DEEPINFER_TEST_ALL") != nullptr;
  Oracle oracle;
  Counts counts;
  if (const char* seed = std::getenv("DEEPINFER_MIX_SEED")) {
    run_engine(static_cast<uint32_t>(std::atoi(seed)), kMixesOfAnEngine, oracle, &counts);
    return;
  }
  for (int i = 0; i < (all ? kEngines : kEnginesShort) && !HasFatalFailure(); ++i)
    run_engine(static_cast<uint32_t>(i), all ? kMixesOfAnEngine : kMixesShort, oracle, &counts);
  EXPECT_GT(counts.verified, 0);
  EXPECT_GT(counts.accepted, 0);
  EXPECT_GT(counts.preempted, 0);
  std::printf("%ld mixes, %ld answers (%ld cancelled): %ld draft rows, %ld right; %ld preemptions\n", counts.mixes,
              counts.answers, counts.cancelled, counts.verified, counts.accepted, counts.preempted);
}

}  // namespace
}  // namespace deepinfer
