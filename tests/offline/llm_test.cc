// The library for offline inference on the bundled model: order, alignment, parameters, chats, logits.
#include "engine/llm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "checkpoint/config.h"
#include "grammar/constraint.h"

namespace deepinfer {
namespace {

class Llm : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto opened = LLM::open({.model = "models/tiny", .threads = 2, .context = 512, .sequences = 8});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    llm = std::move(opened).value();
  }
  static void TearDownTestSuite() { llm.reset(); }
  static inline std::unique_ptr<LLM> llm;
};

engine::Request greedy(int max_tokens) {
  engine::Request r;
  r.sampling.temperature = 0;
  r.max_tokens = max_tokens;
  return r;
}

TEST_F(Llm, ResultsLineUpWithPromptsWhateverIsWrongWithSome) {
  std::vector<PromptInput> prompts = {"Once upon a time",           "",
                                      std::vector<int32_t>{},       std::vector<int32_t>{0, 1 << 30},
                                      std::vector<int32_t>(600, 5), "One, two, three,"};
  const engine::Request r = greedy(8);
  const auto got = llm->generate(prompts, std::span(&r, 1));
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_EQ(got->size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Generation& g = got.value()[i].answers.at(0);
    EXPECT_EQ(g.error.ok(), i == 0 || i == 5) << i;
    EXPECT_TRUE(g.error.ok() || (g.token_ids.empty() && g.text.empty())) << i;
  }
  EXPECT_NE(got.value()[3].answers[0].error.message().find("1073741824"), std::string::npos);
  // Alone it is the same answer.
  for (size_t i : {size_t{0}, size_t{5}}) {
    const auto alone = llm->generate({prompts[i]}, r);
    EXPECT_EQ(alone.value()[0].answers[0].token_ids, got.value()[i].answers[0].token_ids);
    EXPECT_EQ(llm->detokenize(alone.value()[0].answers[0].token_ids), got.value()[i].answers[0].text);
  }
}

TEST_F(Llm, ManyPromptsWithParametersOfTheirOwn) {
  std::vector<PromptInput> prompts;
  std::vector<engine::Request> parameters;
  for (int i = 0; i < 60; ++i) {
    prompts.emplace_back("Number " + std::to_string(i % 7) + " is");
    parameters.push_back(greedy(1 + i % 5));
    parameters.back().n = 1 + i % 2;
  }
  int64_t last = 0;
  const auto got = llm->generate(prompts, parameters, {.on_progress = [&](const GenerateProgress& p) {
                                   EXPECT_GE(p.prompts_done, last);
                                   last = p.prompts_done;
                                 }});
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(last, 60);
  for (size_t i = 0; i < 60; ++i) {
    const Completion& c = got.value()[i];
    ASSERT_EQ(c.answers.size(), 1 + i % 2);
    for (const Generation& g : c.answers) {
      EXPECT_LE(g.token_ids.size(), 1 + i % 5);
      EXPECT_EQ(static_cast<size_t>(g.usage.output_tokens), g.token_ids.size());
    }
    // Equal prompts: the shorter answer is the beginning of the longer one.
    const Completion& other = got.value()[i % 7];
    const auto& a = c.answers[0].token_ids;
    const auto& b = other.answers[0].token_ids;
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + static_cast<long>(std::min(a.size(), b.size())), b.begin()));
  }
}

TEST_F(Llm, SeedsOfABatch) {
  engine::Request r;
  r.max_tokens = 12;
  const std::vector<PromptInput> prompts(8, PromptInput("Once upon a time there was"));
  const auto texts = [&] {
    std::vector<std::string> out;
    const auto got = llm->generate(prompts, std::span(&r, 1));
    for (const Completion& c : got.value()) out.push_back(c.answers[0].text);
    return out;
  };
  std::vector<std::string> free = texts();
  std::ranges::sort(free);
  EXPECT_GT(std::unique(free.begin(), free.end()) - free.begin(), 5);
  r.seed = 9;
  const std::vector<std::string> fixed = texts();
  EXPECT_EQ(std::ranges::count(fixed, fixed[0]), 8);
}

TEST_F(Llm, LogitsAndLogprobsAreOfOneModel) {
  engine::Request r = greedy(5);
  r.logprobs = r.prompt_logprobs = true;
  r.top_logprobs = 3;
  r.full_prefill = true;
  const auto got = llm->generate({"The little fox"}, r, {.logits = true});
  ASSERT_TRUE(got.ok()) << got.status().message();
  const Completion& c = got.value()[0];
  const Generation& g = c.answers[0];
  const auto vocab = static_cast<size_t>(llm->config().vocab_size);
  const size_t n = c.prompt_ids.size();
  ASSERT_EQ(g.logits.size(), g.token_ids.size() * vocab);
  ASSERT_EQ(g.logprobs.size(), g.token_ids.size());
  ASSERT_EQ(c.prompt_logprobs.size(), n);
  std::vector<int32_t> all = c.prompt_ids;
  all.insert(all.end(), g.token_ids.begin(), g.token_ids.end() - 1);
  const auto rows = llm->logits(all);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ(rows->size(), all.size() * vocab);
  for (size_t i = 0; i < g.token_ids.size(); ++i) {
    const float* a = g.logits.data() + i * vocab;
    EXPECT_TRUE(std::equal(a, a + vocab, rows.value().data() + (n - 1 + i) * vocab)) << i;
    EXPECT_EQ(std::max_element(a, a + vocab) - a, g.token_ids[i]);
  }
  for (size_t i = 1; i < n; ++i) {
    const float* row = rows.value().data() + (i - 1) * vocab;
    double sum = 0;
    for (size_t t = 0; t < vocab; ++t) sum += std::exp(static_cast<double>(row[t]));
    EXPECT_NEAR(c.prompt_logprobs[i].token.logprob, row[c.prompt_ids[i]] - std::log(sum), 1e-5);
  }
}

TEST_F(Llm, ParametersAndGrammarsAreRefusedBeforeAnythingRuns) {
  engine::Request r = greedy(4);
  r.sampling.top_p = 0;
  EXPECT_NE(llm->generate({"x"}, r).status().message().find("top_p"), std::string::npos);
  std::vector<engine::Request> three(3, greedy(4));
  const std::vector<PromptInput> two = {"a", "b"};
  EXPECT_NE(llm->generate(two, three).status().message().find("3 sets"), std::string::npos);
  EXPECT_FALSE(llm->constrain_so_args(R"({"schema_type": "regex", "schema": "("})", &r).ok());
  EXPECT_FALSE(llm->constrain_so_args(R"({"schema_type": "xml", "schema": "a"})", &r).ok());
  std::atomic<bool> stop{true};
  EXPECT_EQ(llm->generate({"x"}, greedy(4), {.stop = &stop}).status().code(), Code::kCancelled);
}

TEST_F(Llm, StructuredOutput) {
  const std::pair<std::string, std::string> kinds[] = {
      {"regex", R"("[a-c]{4}")"},
      {"json",
       R"("{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 9}}, \"required\": [\"n\"]}")"},
      {"ebnf", R"("root ::= \"yes\" | \"no\"")"}};
  for (const auto& [type, schema] : kinds) {
    engine::Request r;
    r.max_tokens = 60;
    r.seed = 4;
    const Status status = llm->constrain_so_args("{\"schema_type\": \"" + type + "\", \"schema\": " + schema + "}", &r);
    ASSERT_TRUE(status.ok()) << status.message();
    const Generation g = llm->generate({"Anything"}, r).value()[0].answers[0];
    EXPECT_EQ(g.reason, engine::FinishReason::kStopToken) << g.text;
    EXPECT_TRUE(type != "regex" || g.text.find_first_not_of("abc") == std::string::npos) << g.text;
    EXPECT_TRUE(type != "json" || (g.text.starts_with("{") && g.text.ends_with("}"))) << g.text;
    EXPECT_TRUE(type != "ebnf" || g.text == "yes" || g.text == "no") << g.text;
  }
}

TEST_F(Llm, Chats) {
  recipe::Conversation plain, thinking;
  plain.messages.push_back({.role = recipe::Role::kUser, .content = {.text = "Tell me a short story."}});
  thinking = plain;
  plain.thinking = false;
  const engine::Request r = greedy(60);
  const auto got = llm->chat({plain, thinking}, r);
  ASSERT_TRUE(got.ok()) << got.status().message();
  const ChatAnswer& a = got.value()[0].answers[0];
  EXPECT_TRUE(a.reasoning.empty());
  EXPECT_FALSE(a.text.empty());
  EXPECT_FALSE(got.value()[1].answers[0].reasoning.empty());
  engine::Request stopping = r;
  stopping.stop = {a.text.substr(5, 4)};
  const ChatAnswer cut = llm->chat({plain}, stopping).value()[0].answers[0];
  EXPECT_EQ(cut.text, a.text.substr(0, a.text.find(stopping.stop[0])));
  EXPECT_EQ(cut.reason, engine::FinishReason::kStopText);
}

TEST(LlmDummyWeights, RunWithoutWeights) {
  const std::string dir = ::testing::TempDir() + "llm_dummy_" + std::to_string(::getpid());
  std::filesystem::create_directories(dir);
  for (const char* name : {"config.json", "tokenizer.json"}) {
    std::filesystem::copy_file(std::string("models/tiny/") + name, dir + "/" + name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  const auto run = [&](uint64_t seed) {
    auto llm = LLM::open(
        {.model = dir, .threads = 2, .context = 256, .sequences = 2, .dummy_weights = true, .dummy_seed = seed});
    EXPECT_TRUE(llm.ok()) << llm.status().message();
    return llm.value()->generate({"Once upon a time"}, greedy(8)).value()[0].answers[0].token_ids;
  };
  EXPECT_FALSE(LLM::open({.model = dir}).ok());
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
  std::filesystem::remove_all(dir);
  EXPECT_FALSE(LLM::open({.model = "/no/such/model"}).ok());
}

}  // namespace
}  // namespace deepinfer
