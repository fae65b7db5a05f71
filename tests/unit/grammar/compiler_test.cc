// The compile service: sharing, cache, cancellation, full queue; hostile constraints end within their limits.
#include "grammar/compiler.h"

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "tests/unit/grammar/grammar_testing.h"

namespace deepinfer::grammar {
namespace {

// S(n) of the bug case: 2^n ways to nest.
std::string nested_choices(int n) {
  if (n == 0) return R"({"type":"integer"})";
  const std::string inner = nested_choices(n - 1);
  return R"({"oneOf":[{"type":"object","properties":{"l":)" + inner + R"(}},{"type":"object","properties":{"r":)" +
         inner + "}}]}";
}

std::string repeated(const std::string& part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += part;
  return out;
}

// Much work, refused in the end.
Constraint slow(int variant) {
  std::string members;
  for (int i = 0; i < 300'000; ++i) members += (i ? ",\"v" : "\"v") + std::to_string(i) + R"(":{"type":"integer"})";
  return {ConstraintKind::kJsonSchema,
          R"({"type":"object","title":")" + std::to_string(variant) + R"(","properties":{)" + members + "}}"};
}

TEST(Compiler, CachesByContentAndSharesCompiles) {
  Compiler compiler(bundled_vocabulary(), {});
  const Constraint c{ConstraintKind::kRegex, "[a-z]+"};
  std::atomic<int> calls{0};
  auto first = compiler.submit(c, [&] { ++calls; });
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(first.value()->wait_ms(60'000));
  auto second = compiler.submit(c, [&] { ++calls; });
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second.value()->ready());
  EXPECT_EQ(first.value()->result().value(), second.value()->result().value());
  for (int i = 0; i < 60000 && calls < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(compiler.stats().cache_hits, 1u);
  EXPECT_EQ(compiler.stats().compiles, 1u);
  auto bad = compiler.submit({ConstraintKind::kRegex, "(a"});
  ASSERT_TRUE(bad.value()->wait_ms(60'000));
  EXPECT_EQ(bad.value()->result().status().code(), Code::kInvalidArgument);
  EXPECT_EQ(compiler.stats().failures, 1u);
}

TEST(Compiler, TheCacheIsBounded) {
  Compiler::Options options;
  options.cache_bytes_max = 200'000;
  options.cache_entries_max = 5;
  Compiler compiler(bundled_vocabulary(), options);
  for (int i = 0; i < 20; ++i) {
    auto job = compiler.submit({ConstraintKind::kRegex, "x{" + std::to_string(i) + "}"});
    ASSERT_TRUE(job.value()->wait_ms(60'000));
    EXPECT_TRUE(job.value()->result().ok());
  }
  EXPECT_LE(compiler.stats().cached, 5u);
  EXPECT_LE(compiler.stats().cached_bytes, 300'000u);
}

TEST(Compiler, AFullQueueIsRefusedAndCancellingFreesIt) {
  std::promise<void> entered, leave;  // before the compiler: its thread uses them until it ends
  Compiler::Options options;
  options.threads = 1;
  options.queue_max = 2;
  Compiler compiler(bundled_vocabulary(), options);
  // The only thread is kept busy by a job's callback.
  auto busy = compiler.submit({ConstraintKind::kRegex, "busy"}, [&] {
    entered.set_value();
    leave.get_future().wait();
  });
  ASSERT_TRUE(busy.ok());
  entered.get_future().wait();
  std::vector<std::unique_ptr<CompileJob>> waiting;
  for (const char* regex : {"a", "b"}) {
    auto job = compiler.submit({ConstraintKind::kRegex, regex});
    ASSERT_TRUE(job.ok()) << job.status().to_string();
    waiting.push_back(std::move(job).value());
  }
  const auto refused = compiler.submit({ConstraintKind::kRegex, "c"});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("queue_max"), std::string::npos);
  for (auto& job : waiting) {
    EXPECT_FALSE(job->ready());
    job->cancel();
    EXPECT_EQ(job->result().status().code(), Code::kCancelled);
  }
  auto next = compiler.submit({ConstraintKind::kRegex, "d"});
  EXPECT_TRUE(next.ok());
  leave.set_value();
  ASSERT_TRUE(next.value()->wait_ms(30'000));
  EXPECT_TRUE(next.value()->result().ok());
}

TEST(Compiler, EndsWhileJobsAreOpen) {
  std::vector<std::unique_ptr<CompileJob>> jobs;
  {
    Compiler::Options options;
    options.threads = 1;
    Compiler compiler(bundled_vocabulary(), options);
    for (int i = 0; i < 4; ++i) jobs.push_back(compiler.submit(slow(i)).value());
  }
  for (const auto& job : jobs) EXPECT_TRUE(job->ready());
}

TEST(Bombs, EndWithinTheirLimits) {
  Limits limits;
  limits.compile_ms = 300;
  std::vector<Constraint> bombs = {
      {ConstraintKind::kJsonSchema, nested_choices(9)},
      {ConstraintKind::kJsonSchema, std::string(10'000, '[') + std::string(10'000, ']')},
      {ConstraintKind::kRegex, "((a?){1000}){1000}"},
      {ConstraintKind::kRegex, "(.*a){30}.*b{1000}(.*c){30}"},
      {ConstraintKind::kRegex, "(?=(a|b)*a(a|b){20})(?=(a|b)*b(a|b){19})(a|b)*"},
      {ConstraintKind::kRegex, std::string(20'000, '(') + "a" + std::string(20'000, ')')},
      {ConstraintKind::kRegex, std::string(200'000, 'a') + "*"},
      {ConstraintKind::kRegex, "(" + repeated("[ab][bc]", 50'000) + ")x"},
      {ConstraintKind::kRegex, repeated("a?b?", 20'000)},
      {ConstraintKind::kRegex, "(?!x)" + repeated("[ab]c", 20'000)},
      {ConstraintKind::kEbnf, "root ::= (" + repeated("x? ", 20'000) + ") \"c\"\nx ::= \"a\" | \"b\" x"},
      {ConstraintKind::kEbnf, "root ::= (((\"a\"?)*)*)* root | root root root | \"b\""},
      slow(0)};
  std::string deep = R"({"type":"integer"})";
  for (int i = 0; i < 10'000; ++i) deep = R"({"items":)" + deep + "}";
  bombs.push_back({ConstraintKind::kJsonSchema, deep});
  std::string values;
  for (int i = 0; i < 100'000; ++i) values += (i ? ",\"v" : "\"v") + std::to_string(i * 7919) + "\"";
  bombs.push_back({ConstraintKind::kJsonSchema, R"({"enum":[)" + values + "]}"});
  bombs.push_back({ConstraintKind::kJsonSchema, R"({"description":")" + std::string(11 << 20, 'x') + "\"}"});
  for (const Constraint& c : bombs) {
    auto r = compile_constraint(c, bundled_vocabulary(), limits);  // a hang runs into ctest's timeout
    if (!r.ok()) {
      EXPECT_NE(r.status().code(), Code::kInternal) << r.status().to_string();
      continue;
    }
    Matcher m(r.value());
    std::vector<uint32_t> mask(bundled_vocabulary()->mask_words());
    const Status s = m.fill_mask(mask);
    EXPECT_TRUE(s.ok() || s.code() == Code::kResourceExhausted) << s.to_string();
  }
}

}  // namespace
}  // namespace deepinfer::grammar
