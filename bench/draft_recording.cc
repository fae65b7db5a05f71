#include "bench/draft_recording.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include <fmt/format.h>

#include "base/file.h"
#include "bench/must.h"
#include "checkpoint/checkpoint.h"
#include "model/sequence.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/sampler.h"
#include "recipe/render.h"
#include "recipe/tokenize.h"

namespace bench {
namespace {

using namespace deepinfer;

constexpr int kBatch = 32, kContext = 1024;
constexpr std::string_view kMagic = "drafts 1\n";

class Words {
 public:
  explicit Words(uint32_t seed) : random_(seed) {}
  const char* of(std::initializer_list<const char*> list) { return list.begin()[random_() % list.size()]; }
  int number(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

 private:
  std::mt19937 random_;
};

recipe::Tool tool(const char* name, const char* about, const char* parameter) {
  recipe::Tool t;
  t.name = name;
  t.description = about;
  recipe::Json property = recipe::Json::object(), properties = recipe::Json::object();
  property.set("type", "string");
  properties.set(parameter, std::move(property));
  t.parameters.set("type", "object");
  t.parameters.set("properties", std::move(properties));
  t.parameters.set("required", recipe::JsonArray{parameter});
  return t;
}

recipe::Conversation conversation(PromptKind kind, const std::string& text) {
  recipe::Conversation c;
  c.thinking = false;
  c.effort.reset();
  if (kind == PromptKind::kTools) {
    c.tools = {tool("get_weather", "Weather of a city", "city"), tool("get_time", "Time in a city", "city"),
               tool("search", "Search the web", "query")};
  }
  c.messages.push_back({.role = recipe::Role::kUser, .content = {.text = text}});
  return c;
}

struct Answer {
  model::Sequence sequence;
  RecordedAnswer record;
  ops::SamplingParams params;
  uint64_t seed = 0;
  int32_t prompt = 0;
  std::vector<int32_t> tokens;                            // drawn
  std::vector<std::array<int32_t, kDrafts>> drafts = {};  // by round
};

class Recorder {
 public:
  explicit Recorder(const RecordOptions& o)
      : options_(o),
        checkpoint_(std::make_shared<const checkpoint::Checkpoint>(must(checkpoint::Checkpoint::open(o.model)))),
        prompts_(o.model),
        sampler_(static_cast<int>(checkpoint_->config().vocab_size)) {
    model::Options m;
    m.limits.context_max = kContext;
    m.limits.sequences_max = m.limits.outputs_max = kBatch;
    m.pages = kBatch * ops::KvLayout::pages_for(kContext);
    m.slots = kBatch;
    model_ = must(model::Model::create(checkpoint_, ops::make_cpu_ops(o.threads), m));
    kv_ = std::make_unique<model::KvAllocator>(m.pages, m.slots);
  }

  Recording run() {
    const int total = 2 * options_.prompts;
    for (int next = 0; next < total || !live_.empty();) {
      while (next < total && std::ssize(live_) < kBatch) start(next++);
      step();
    }
    return std::move(out_);
  }

 private:
  int32_t draw(const Answer& a, std::span<const float> logits, int32_t position) {
    return sampler_.sample({.logits = logits,
                            .params = &a.params,
                            .place = {.seed = a.seed, .position = static_cast<uint32_t>(position)}});
  }

  std::span<const float> row(ops::Role role, int64_t i) const {
    const ops::Buffer b = model_->ops().buffer(role);
    return {static_cast<const float*>(b.data) + i * b.cols, static_cast<size_t>(b.cols)};
  }

  void start(int index) {
    const auto kind = static_cast<PromptKind>(index / 2 % 3);
    const std::vector<int32_t> prompt = prompts_.ids(kind, static_cast<uint32_t>(index / 2));
    auto a = std::make_unique<Answer>(Answer{.sequence = must(model::Sequence::create(*model_, *kv_))});
    a->record = {.kind = kind, .sampled = index % 2 == 1, .rounds = {}};
    a->params.temperature = a->record.sampled ? 0.8 : 0;
    a->seed = static_cast<uint64_t>(index);
    a->prompt = static_cast<int32_t>(prompt.size());
    std::vector<float> logits;
    must(a->sequence.append(prompt, 1, &logits));
    a->tokens.push_back(draw(*a, logits, a->prompt));
    live_.push_back(std::move(a));
  }

  // The drawn tokens run as rows, draw the next ones, and a draft round is recorded behind each.
  void step() {
    plan_.clear();
    for (const auto& a : live_) must(a->sequence.add_rows(plan_, std::span(a->tokens).last(1), 1));
    must(model_->forward(plan_));
    must(model_->ops().synchronize());
    for (size_t i = 0; i < live_.size(); ++i) {
      Answer& a = *live_[i];
      a.sequence.commit_rows(std::span(a.tokens).last(1));
      a.tokens.push_back(draw(a, row(ops::Role::kLogits, static_cast<int64_t>(i)), a.sequence.size()));
    }
    draft();
    std::erase_if(live_, [this](const auto& a) {
      const bool ended = std::ssize(a->tokens) >= options_.tokens + kDrafts + 1 || is_end(a->tokens.back());
      if (ended) finish(*a);
      return ended;
    });
  }

  void draft() {
    model::DraftPlan plan{.drafts = kDrafts, .sequences = {}};
    for (const auto& a : live_) {
      plan.sequences.push_back(
          {.slot = a->sequence.slot(), .position = a->sequence.size() - 1, .token = a->tokens.back()});
      a->drafts.emplace_back();
      a->record.rounds.emplace_back();
    }
    must(model_->draft(plan, [this](int index) {
      DI_RETURN_IF_ERROR(model_->ops().synchronize());
      const ops::Buffer tokens = model_->ops().buffer(ops::Role::kDraftTokens);
      for (size_t i = 0; i < live_.size(); ++i) {
        Answer& a = *live_[i];
        const int32_t token = draw(a, row(ops::Role::kLogits, static_cast<int64_t>(i)), a.sequence.size() + 1 + index);
        static_cast<int32_t*>(tokens.data)[static_cast<int64_t>(i) * tokens.cols + index + 1] = token;
        a.drafts.back()[static_cast<size_t>(index)] = token;
      }
      return Status();
    }));
    must(model_->ops().synchronize());
    for (size_t i = 0; i < live_.size(); ++i) {
      std::ranges::copy(row(ops::Role::kConfidence, static_cast<int64_t>(i)).first(kDrafts),
                        live_[i]->record.rounds.back().confidence.begin());
    }
  }

  bool is_end(int32_t token) const { return token == checkpoint_->config().eos_token_id; }

  // Round i was made with tokens[i + 1] drawn and proposes tokens[i + 2] ..; the last rounds of an answer that was cut
  // have no truth to compare with.
  void finish(Answer& a) {
    const auto drawn = static_cast<size_t>(std::ssize(a.tokens));
    const size_t rounds = is_end(a.tokens.back()) ? drawn - 2 : drawn - 1 - kDrafts;
    a.record.rounds.resize(std::min(rounds, a.record.rounds.size()));
    for (size_t i = 0; i < a.record.rounds.size(); ++i) {
      uint8_t& k = a.record.rounds[i].accepted;
      while (k < kDrafts && i + 2 + k < drawn && a.drafts[i][k] == a.tokens[i + 2 + k]) ++k;
    }
    if (!a.record.rounds.empty()) out_.answers.push_back(std::move(a.record));
  }

  const RecordOptions options_;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  const Prompts prompts_;
  ops::Sampler sampler_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::KvAllocator> kv_;
  std::vector<std::unique_ptr<Answer>> live_;
  model::StepPlan plan_;
  Recording out_;
};

}  // namespace

std::string prompt_text(PromptKind kind, uint32_t seed) {
  Words w(seed);
  const char* who = w.of({"mouse", "girl named Mia", "boy named Tom", "cat", "robot", "bird", "farmer", "fox", "bear"});
  const char* city = w.of({"Paris", "London", "Rome", "Tokyo", "Berlin", "Madrid", "Cairo", "Oslo", "Lima", "Delhi"});
  switch (kind) {
    case PromptKind::kChat:
      switch (w.number(5)) {
        case 0: return fmt::format("Tell me a {} story about a {}.", w.of({"short", "funny", "nice", "sad"}), who);
        case 1: return fmt::format("What is {} {} {}?", w.number(90), w.of({"+", "-", "*"}), w.number(90));
        case 2:
          return fmt::format("What does the word \"{}\" mean?", w.of({"brave", "river", "tiny", "lamp", "garden"}));
        case 3: return w.of({"Hello! How are you today?", "Who are you?", "What can you do?", "Can you help me?"});
        default: return fmt::format("Please {} about {}.", w.of({"write", "say something", "talk"}), city);
      }
    case PromptKind::kTools:
      switch (w.number(3)) {
        case 0: return fmt::format("What is the weather in {}{}?", city, w.of({"", " today", " tomorrow"}));
        case 1: return fmt::format("What time is it in {}?", city);
        default: return fmt::format("Search for {} in {}.", w.of({"hotels", "trains", "music", "food"}), city);
      }
    case PromptKind::kText:
      return fmt::format("{} there {} a {}", w.of({"Once upon a time", "One day", "Long ago", "In a small town"}),
                         w.of({"was", "lived"}), who);
  }
  return {};
}

struct Prompts::Impl {
  explicit Impl(const text::Tokenizer& tokenizer)
      : encoder(tokenizer, must(recipe::SpecialIds::find(tokenizer, recipe::Version::kV41)), {}) {}

  recipe::PromptEncoder encoder;
  int32_t begin = 0;  // token in front of a text
};

Prompts::Prompts(const std::string& model)
    : impl_(std::make_unique<Impl>(must(text::Tokenizer::load(model + "/tokenizer.json")))) {
  impl_->begin = static_cast<int32_t>(must(checkpoint::Checkpoint::open(model)).config().bos_token_id);
}

Prompts::~Prompts() = default;

std::vector<int32_t> Prompts::ids(PromptKind kind, uint32_t seed) const {
  const std::string text = prompt_text(kind, seed);
  if (kind == PromptKind::kText) {
    const std::vector<text::TokenId> ids = impl_->encoder.tokenizer().encode(text);
    std::vector<int32_t> out(1, impl_->begin);
    out.insert(out.end(), ids.begin(), ids.end());
    return out;
  }
  const recipe::EncodedPrompt e = must(impl_->encoder.encode(render(conversation(kind, text), recipe::Version::kV41)));
  return {e.ids.begin(), e.ids.end()};
}

Recording record_drafts(const RecordOptions& options) { return Recorder(options).run(); }

void save(const Recording& recording, const std::string& path) {
  std::string bytes(kMagic);
  const auto put = [&bytes](const void* data, size_t n) { bytes.append(static_cast<const char*>(data), n); };
  for (const RecordedAnswer& a : recording.answers) {
    const auto rounds = static_cast<uint16_t>(a.rounds.size());
    put(&a.kind, 1);
    put(&a.sampled, 1);
    put(&rounds, 2);
    for (const DraftRound& r : a.rounds) {
      put(r.confidence.data(), sizeof r.confidence);
      put(&r.accepted, 1);
    }
  }
  std::FILE* f = std::fopen(path.c_str(), "wb");
  if (f == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), f) != bytes.size() || std::fclose(f) != 0) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    std::exit(1);
  }
}

Recording load_recording(const std::string& path) {
  const Result<std::string> read = read_file(path, 1u << 30);
  if (!read.ok() || !read.value().starts_with(kMagic)) return {};
  const std::string& bytes = read.value();
  Recording out;
  size_t at = kMagic.size();
  const auto get = [&](void* to, size_t n) {
    if (at + n > bytes.size()) return false;
    std::copy_n(bytes.data() + at, n, static_cast<char*>(to));
    at += n;
    return true;
  };
  while (at < bytes.size()) {
    RecordedAnswer a;
    uint16_t rounds = 0;
    if (!get(&a.kind, 1) || !get(&a.sampled, 1) || !get(&rounds, 2)) return {};
    a.rounds.resize(rounds);
    for (DraftRound& r : a.rounds) {
      if (!get(r.confidence.data(), sizeof r.confidence) || !get(&r.accepted, 1)) return {};
    }
    out.answers.push_back(std::move(a));
  }
  return out;
}

}  // namespace bench
