// The option table and what comes of it: values from four places, refusals, the page.
#include "app/options/values.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "app/options/docs_page.h"
#include "app/options/former_names.h"

namespace deepinfer::app {
namespace {

class OptionsTest : public ::testing::Test {
 protected:
  void SetUp() override { path_ = testing::TempDir() + "options_test_" + std::to_string(::getpid()) + ".toml"; }
  void TearDown() override { std::remove(path_.c_str()); }

  std::string file(std::string_view text) {
    std::ofstream(path_, std::ios::binary) << text;
    return path_;
  }
  // The sentence of a refusal, "" if there is none.
  static std::string refusal(const OptionInputs& inputs) { return resolve_options(inputs).status().message(); }

  std::string path_;
};

TEST_F(OptionsTest, TableIsConsistent) {
  std::set<std::string> names, variables;
  for (const FormerName& f : former_names()) variables.insert("DEEPINFER_" + std::string(f.name));
  EXPECT_EQ(variables.size(), former_names().size());
  for (const OptionSpec& s : option_table()) {
    EXPECT_TRUE(names.insert(std::string(s.name)).second) << s.name;
    EXPECT_TRUE(variables.insert(option_variable(s)).second) << s.name;
    std::string_view room[8];
    for (std::string_view alias : split_words(s.aliases, room)) {
      EXPECT_TRUE(variables.insert("DEEPINFER_" + std::string(alias)).second) << alias;
    }
    EXPECT_FALSE(s.section.empty() || s.commands.empty() || s.help.empty()) << s.name;
    EXPECT_EQ(s.kind == OptionKind::kChoice, !s.choices.empty()) << s.name;
    if (!s.fallback.empty()) {
      EXPECT_EQ(check_option(s, std::string(s.fallback), "x").error, "") << s.name;
    }
    EXPECT_TRUE(s.kind == OptionKind::kSwitch || s.fallback.empty() == !s.without.empty()) << s.name;
  }
}

TEST_F(OptionsTest, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  OptionInputs in{.command = "generate"};
  const auto rows = [&](Origin origin, std::string_view where) {
    const auto values = resolve_options(in);
    EXPECT_TRUE(values.ok()) << values.status().message();
    int rows = -1;
    values.value().read("rows", &rows);
    EXPECT_EQ(values.value().at("rows").origin, origin);
    EXPECT_NE(values.value().at("rows").where.find(where), std::string::npos) << values.value().at("rows").where;
    return rows;
  };
  EXPECT_EQ(rows(Origin::kDefault, ""), 256);
  in.config_path = file("[engine]\nrows = 300\n");
  EXPECT_EQ(rows(Origin::kFile, "(line 2)"), 300);
  in.environment = {"DEEPINFER_ROWS=400"};
  EXPECT_EQ(rows(Origin::kEnvironment, "DEEPINFER_ROWS"), 400);
  in.environment = {"DEEPINFER_ROWS="};  // as if unset
  EXPECT_EQ(rows(Origin::kFile, "rows in [engine]"), 300);
  in.flags["rows"] = {"500", "600"};
  EXPECT_EQ(rows(Origin::kFlag, "--rows"), 600);
}

TEST_F(OptionsTest, ReadsEveryKind) {
  const std::string config = file(
      "[sampling]\ntemperature = 0.25\ntop_p = 1\nseed = \"18446744073709551615\"\nstop = [\"a, b\", \"\\n\"]\n"
      "thinking = false\n[output]\njson = true\n[model]\nprefill = \"full\"\n");
  const auto values =
      resolve_options({.command = "run", .config_path = config, .environment = {"DEEPINFER_QUIET=Yes"}});
  ASSERT_TRUE(values.ok()) << values.status().message();
  std::optional<double> temperature, top_p;
  std::optional<uint64_t> seed;
  std::optional<int64_t> top_k;
  std::vector<std::string> stop;
  std::string prefill;
  bool thinking = true, json = false, quiet = false;
  const OptionValues& v = values.value();
  v.read("temperature", &temperature);
  v.read("top-p", &top_p);
  v.read("seed", &seed);
  v.read("top-k", &top_k);
  v.read("stop", &stop);
  v.read("prefill", &prefill);
  v.read("thinking", &thinking);
  v.read("json", &json);
  v.read("quiet", &quiet);
  EXPECT_EQ(temperature, 0.25);
  EXPECT_EQ(top_p, 1.0);
  EXPECT_EQ(seed, ~uint64_t{0});
  EXPECT_FALSE(top_k.has_value());
  EXPECT_EQ(stop, (std::vector<std::string>{"a, b", "\n"}));
  EXPECT_EQ(prefill, "full");
  EXPECT_FALSE(thinking);
  EXPECT_TRUE(json);
  EXPECT_TRUE(quiet);
}

TEST_F(OptionsTest, PrintedConfigurationIsAConfiguration) {
  const OptionInputs in{
      .command = "run",
      .flags = {{"stop", {"\"quoted\"\n", "x"}}, {"seed", {"18446744073709551615"}}, {"top-p", {"0.5"}}},
      .environment = {"DEEPINFER_THREADS=3"}};
  const auto values = resolve_options(in);
  ASSERT_TRUE(values.ok()) << values.status().message();
  const std::string text = values.value().to_toml();
  EXPECT_NE(text.find("threads = 3  # from DEEPINFER_THREADS"), std::string::npos) << text;
  const auto again = resolve_options({.command = "run", .config_path = file(text)});
  ASSERT_TRUE(again.ok()) << again.status().message() << text;
  for (const OptionSpec& s : option_table()) EXPECT_EQ(again.value().at(s.name).texts, values.value().at(s.name).texts);
}

TEST_F(OptionsTest, RefusesTyposWithTheNearestName) {
  const auto env = [](std::string entry) { return refusal({.command = "run", .environment = {std::move(entry)}}); };
  EXPECT_NE(env("DEEPINFER_THREDS=2").find("Did you mean DEEPINFER_THREADS?"), std::string::npos);
  EXPECT_NE(env("DEEPINFER_USE_NEXT_DECODE=5").find("Did you mean DEEPINFER_USE_NEXTN_DECODE?"), std::string::npos);
  EXPECT_NE(env("DEEPINFER_=1").find("DEEPINFER_"), std::string::npos);
  EXPECT_EQ(env("DEEPINFER_TEST_ALL=1"), "");
  EXPECT_EQ(env("OTHER_THREDS=2"), "");
  const auto toml = [&](std::string_view text) { return refusal({.command = "run", .config_path = file(text)}); };
  EXPECT_NE(toml("[engine]\nrow = 5\n").find("line 2: there is no key row in [engine]. Did you mean rows?"),
            std::string::npos);
  EXPECT_NE(toml("[engine]\nthreads = 5\n").find("threads belongs into [model]"), std::string::npos);
  EXPECT_NE(toml("[engin]\nrows = 5\n").find("no section engin. Did you mean engine?"), std::string::npos);
  EXPECT_NE(toml("rows = 5\n").find("outside of sections"), std::string::npos);
  EXPECT_NE(toml("model = 5\n").find("must be a section"), std::string::npos);
  EXPECT_NE(toml("[output]\nresume = true\n").find("no key resume"), std::string::npos);
  EXPECT_NE(toml("[engine\n").find("line 1"), std::string::npos);
  EXPECT_NE(refusal({.command = "run", .config_path = "/no/such/file.toml"}).find("/no/such/file.toml"),
            std::string::npos);
}

TEST_F(OptionsTest, RefusesBadValuesByTheirPlace) {
  const auto flag = [](std::string name, std::string value) {
    return refusal({.command = "run", .flags = {{std::move(name), {std::move(value)}}}});
  };
  EXPECT_NE(flag("threads", "0").find("--threads must be a whole number from 1 to 1024"), std::string::npos);
  for (const char* bad : {"", "1.5", "x", "99999999999999999999", " 1", "1 ", "+1"})
    EXPECT_NE(flag("threads", bad), "") << bad;
  for (const char* bad : {"nan", "-0.1", "2.1", "inf", "", "0.5x"}) EXPECT_NE(flag("temperature", bad), "") << bad;
  for (const char* bad : {"-1", "18446744073709551616", "1e3", ""}) EXPECT_NE(flag("seed", bad), "") << bad;
  EXPECT_NE(flag("backend", "quick").find("one of fast, fast-avx2, plain, reference, cuda"), std::string::npos);
  EXPECT_NE(flag("thinking", "maybe").find("on or off"), std::string::npos);
  EXPECT_NE(flag("effort", "101").find("1 to 100"), std::string::npos);
  EXPECT_NE(refusal({.command = "run", .environment = {"DEEPINFER_THREADS=no"}}).find("DEEPINFER_THREADS must be"),
            std::string::npos);
  const auto serve = [](std::string name, std::string value) {
    return refusal({.command = "serve", .flags = {{std::move(name), {std::move(value)}}}});
  };
  for (const char* bad : {"", "example.com", "://x", "https://", "https://example.com/", "https://a b"})
    EXPECT_NE(serve("cors-origin", bad), "") << bad;
  for (const char* good : {"*", "null", "https://example.com", "http://[::1]:8080"})
    EXPECT_EQ(serve("cors-origin", good), "") << good;
  for (const char* bad : {"", "http://images.internal", "a b"}) EXPECT_NE(serve("image-allow-host", bad), "") << bad;
  EXPECT_EQ(serve("image-allow-host", "images.internal:8080"), "");
  for (const char* bad : {"", "\xff", "a\nb"}) EXPECT_NE(serve("model-name", bad), "") << bad;
  EXPECT_EQ(serve("model-alias", "deepseek-ai/DeepSeek V4.1"), "");
  // What is there for another command is checked, too.
  EXPECT_NE(refusal({.command = "run", .environment = {"DEEPINFER_ROWS=0"}}), "");
  EXPECT_NE(refusal({.command = "run", .config_path = file("[engine]\nrows = \"5\"\n")}).find("must be a whole number"),
            std::string::npos);
  EXPECT_NE(refusal({.command = "run", .config_path = file("[sampling]\nstop = [1]\n")}).find("a list of texts"),
            std::string::npos);
  EXPECT_NE(refusal({.command = "run", .config_path = file("[output]\njson = 1\n")}).find("true or false"),
            std::string::npos);
}

TEST_F(OptionsTest, HonoursNamesOfTheFirstRelease) {
  const auto values =
      resolve_options({.command = "run",
                       .environment = {"DEEPINFER_HF_MODEL_DIR=/models/x", "DEEPINFER_ACCELERATOR=nvidia",
                                       "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE=off", "DEEPINFER_NCCL_NUM_SMS=32",
                                       "DEEPINFER_FORCE_LOAD_BALANCE=0"}});
  ASSERT_TRUE(values.ok()) << values.status().message();
  EXPECT_EQ(values.value().at("model").texts.front(), "/models/x");
  EXPECT_EQ(values.value().at("backend").texts.front(), "cuda");
  EXPECT_EQ(values.value().at("prefill").texts.front(), "full");
  ASSERT_EQ(values.value().notes.size(), 1u);
  EXPECT_NE(values.value().notes.front().find("DEEPINFER_NCCL_NUM_SMS has no effect"), std::string::npos);
  EXPECT_NE(refusal({.command = "run", .environment = {"DEEPINFER_ACCELERATOR=ascend"}}).find("one of fast"),
            std::string::npos);
  EXPECT_NE(refusal({.command = "run", .environment = {"DEEPINFER_FORCE_LOAD_BALANCE=1"}}).find("not possible"),
            std::string::npos);
  const std::string conflict =
      refusal({.command = "run", .environment = {"DEEPINFER_HF_MODEL_DIR=/a", "DEEPINFER_MODEL=/b"}});
  EXPECT_NE(conflict.find("DEEPINFER_HF_MODEL_DIR=/a and DEEPINFER_MODEL=/b contradict"), std::string::npos)
      << conflict;
  EXPECT_EQ(refusal({.command = "run", .environment = {"DEEPINFER_HF_MODEL_DIR=/a", "DEEPINFER_MODEL=/a"}}), "");
}

// USE_NEXTN_DECODE is a number of drafts, ENABLE_MTP_VARLEN whether their confidence decides; each beats the default
// and is beaten by a flag.
TEST_F(OptionsTest, HonoursTheNamesOfSpeculation) {
  struct Case {
    std::string nextn, varlen;
    int drafts;
    bool confidence;
  };
  const std::vector<Case> cases = {{"", "", 5, true},      {"0", "", 0, true},       {"3", "0", 3, false},
                                   {"5", "1", 5, true},    {"11", "false", 11, false}, {"1", "True", 1, true}};
  for (const std::string command : {"run", "serve", "generate"}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(command + " " + c.nextn + " " + c.varlen);
      const auto values = resolve_options(
          {.command = command,
           .environment = {"DEEPINFER_USE_NEXTN_DECODE=" + c.nextn, "DEEPINFER_ENABLE_MTP_VARLEN=" + c.varlen}});
      ASSERT_TRUE(values.ok()) << values.status().message();
      int drafts = -1;
      bool confidence = !c.confidence;
      values.value().read("drafts", &drafts);
      values.value().read("draft-confidence", &confidence);
      EXPECT_EQ(drafts, c.drafts);
      EXPECT_EQ(confidence, c.confidence);
    }
  }
  const auto env = [](std::vector<std::string> list) { return refusal({.command = "run", .environment = list}); };
  for (const std::string bad : {"-1", "12", "five", "2.5"})
    EXPECT_NE(env({"DEEPINFER_USE_NEXTN_DECODE=" + bad}).find("DEEPINFER_USE_NEXTN_DECODE"), std::string::npos) << bad;
  for (const std::string bad : {"2", "maybe", "-1"})
    EXPECT_NE(env({"DEEPINFER_ENABLE_MTP_VARLEN=" + bad}).find("DEEPINFER_ENABLE_MTP_VARLEN"), std::string::npos)
        << bad;
  EXPECT_NE(env({"DEEPINFER_USE_NEXTN_DECODE=3", "DEEPINFER_DRAFTS=4"}).find("contradict"), std::string::npos);
  EXPECT_NE(env({"DEEPINFER_ENABLE_MTP_VARLEN=1", "DEEPINFER_DRAFT_CONFIDENCE=0"}).find("contradict"),
            std::string::npos);
  EXPECT_EQ(env({"DEEPINFER_USE_NEXTN_DECODE=4", "DEEPINFER_DRAFTS=4"}), "");
  EXPECT_NE(env({"DEEPINFER_ENABLE_MTP_VARLENS=1"}).find("Did you mean DEEPINFER_ENABLE_MTP_VARLEN?"),
            std::string::npos);
  const auto flag = resolve_options(
      {.command = "run", .flags = {{"drafts", {"2"}}}, .environment = {"DEEPINFER_USE_NEXTN_DECODE=4"}});
  ASSERT_TRUE(flag.ok());
  EXPECT_EQ(flag.value().at("drafts").texts.front(), "2");
  EXPECT_EQ(flag.value().at("drafts").origin, Origin::kFlag);
}

TEST_F(OptionsTest, PageIsTheCommittedOne) {
  std::ifstream committed("docs/configuration.md", std::ios::binary);
  std::stringstream text;
  text << committed.rdbuf();
  EXPECT_EQ(text.str(), configuration_markdown())
      << "Make it again: build/release/src/app/deepinfer config --docs > docs/configuration.md";
}

}  // namespace
}  // namespace deepinfer::app
