#include "recipe/output_parser.h"

#include <random>

#include <gtest/gtest.h>

#include "base/file.h"
#include "recipe/json.h"
#include "recipe/json_check.h"
#include "tests/fixtures/parser_cases.h"

namespace deepinfer::recipe {
namespace {

struct Parsed : OutputSink {
  std::string reasoning, content;
  struct Call {
    std::string name, arguments;
    bool ended = false, complete = false;
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> calls;
  std::string finish;

  void on_reasoning(std::string_view t, SourceRange s) override { piece(t, s, reasoning); }
  void on_content(std::string_view t, SourceRange s) override { piece(t, s, content); }
  void on_call_begin(int call, std::string_view name) override {
    ASSERT_EQ(call, static_cast<int>(calls.size()));
    ASSERT_TRUE(calls.empty() || calls.back().ended);
    calls.push_back({std::string(name), ""});
  }
  void on_call_arguments(int call, std::string_view json) override {
    ASSERT_EQ(call + 1, static_cast<int>(calls.size()));
    ASSERT_FALSE(calls[call].ended);
    calls[call].arguments += json;
  }
  void on_call_end(int call, bool complete) override {
    ASSERT_FALSE(calls[call].ended);
    calls[call].ended = true, calls[call].complete = complete;
  }
  bool operator==(const Parsed& o) const {
    return reasoning == o.reasoning && content == o.content && calls == o.calls && finish == o.finish;
  }

 private:
  void piece(std::string_view text, SourceRange source, std::string& to) {
    EXPECT_FALSE(text.empty());
    EXPECT_LT(source.begin, source.end);
    EXPECT_GE(source.begin, source_end_);
    source_end_ = source.end;
    to += text;
  }
  uint64_t source_end_ = 0;
};

// Feeds pieces; "\x01" as a piece is the </think> marker and "\x02" the DSML marker.
Parsed parse(const ParserOptions& options, const std::vector<std::string>& pieces,
             FinishReason engine = FinishReason::kStop) {
  Parsed out;
  OutputParser parser(options, &out);
  for (const std::string& piece : pieces) {
    if (piece == "\x01" || piece == "\x02") {
      parser.feed_marker(piece == "\x01" ? Marker::kThinkClose : Marker::kDsml);
    } else {
      parser.feed(piece);
    }
  }
  out.finish = finish_reason_name(parser.finish(engine));
  return out;
}

ParserOptions with_tools(InitialStage initial = InitialStage::kContentStart) {
  ParserOptions options;
  options.parse_tool_calls = true;
  options.initial = initial;
  return options;
}

std::string one_call(const std::string& inside) {
  return "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + inside + "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
}
std::string parameter(const std::string& key, const std::string& attribute, const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + key + "\"" + attribute + ">" + value + "</｜DSML｜ parameter>\n";
}
std::string arguments_of(const std::string& text) {
  const Parsed out = parse(with_tools(), {text});
  return out.calls.size() == 1 ? out.calls[0].arguments : "";
}

TEST(OutputParserTest, FixturesPass) {
  for (const char* name : {"parser.json", "oracle_parser.json"}) {
    Result<std::string> file = read_file(std::string(DEEPINFER_TEST_DATA "/recipe/") + name, 1 << 20);
    ASSERT_TRUE(file.ok()) << file.status().message();
    Result<Json> root = parse_json(file.value());
    ASSERT_TRUE(root.ok());
    ASSERT_GE(root.value().find("cases")->as_array().size(), 54u);
    for (const Json& c : root.value().find("cases")->as_array()) {
      const fixtures::Outcome o = fixtures::check_parser_case(c);
      EXPECT_FALSE(o) << fixtures::text_member(c, "name") << " " << o->what << "\n" << o->expected << "\n" << o->got;
    }
  }
}

TEST(OutputParserTest, ValueThatEndsLikeATag) {  // fixtures/bugs case 6
  for (const std::string value :
       {"cat log 2>&1", "<", "</", "</｜", "</｜DSML", "</｜DSML｜ parameter", "a</｜DSM</"}) {
    std::string text = one_call(parameter("command", " string=\"true\"", value));
    // The full closing tag without its last character holds the marker itself, so there the value ends before it.
    const std::string expected = value == "</｜DSML｜ parameter" ? "" : value;
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      const Parsed out = parse(with_tools(), {text.substr(0, cut), text.substr(cut)});
      ASSERT_EQ(out.calls.size(), 1u);
      Result<Json> arguments = parse_json(out.calls[0].arguments);
      ASSERT_TRUE(arguments.ok()) << out.calls[0].arguments;
      EXPECT_EQ(arguments.value().find("command")->as_string(), expected);
      EXPECT_TRUE(out.calls[0].complete);
    }
  }
}

TEST(OutputParserTest, MarkersKeepSpelledTagsInValues) {
  ParserOptions options = with_tools();
  options.markers = true;
  const Parsed out = parse(options, {"<", "\x02", " calls>\n<", "\x02", " invoke name=\"sh\">\n<", "\x02",
                                     " parameter name=\"c\" string=\"true\">x</｜DSML｜ parameter", "</", "\x02",
                                     " parameter>\n</", "\x02", " invoke>\n</", "\x02", " calls>"});
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].arguments, "{\"c\": \"x</｜DSML｜ parameter\"}");
  EXPECT_EQ(out.finish, "tool_calls");
}

TEST(OutputParserTest, MarkersThatAreNoMarkupPrintTheirText) {
  ParserOptions options;
  options.markers = true;
  options.initial = InitialStage::kReasoningStart;
  const Parsed out = parse(options, {"a", "\x02", "<", "\x02", "b</think>", "\x01", "c", "\x02", "\x01", "d"});
  EXPECT_EQ(out.reasoning, "a｜DSML｜<｜DSML｜b</think>");
  EXPECT_EQ(out.content, "c｜DSML｜d");
}

TEST(OutputParserTest, StopStringOverTokens) {  // fixtures/bugs case 10
  ParserOptions options;
  options.initial = InitialStage::kContentStart;
  options.markers = true;
  options.stop_sequences = {"DEFGHIJ"};
  std::vector<std::string> letters;
  for (char c = 'A'; c <= 'Z'; ++c) letters.emplace_back(1, c);
  Parsed out;
  {
    OutputParser parser(options, &out);
    for (const std::string& letter : letters) {
      parser.feed(letter);
      EXPECT_LE(out.content, "ABC");
      EXPECT_EQ(parser.stopped(), letter[0] >= 'J');
    }
    EXPECT_EQ(parser.finish(FinishReason::kLength), FinishReason::kStopSequence);
    EXPECT_EQ(parser.stop_sequence(), "DEFGHIJ");
  }
  EXPECT_EQ(out.content, "ABC");

  options.stop_sequences = {"DEFZ"};
  Parsed released;
  OutputParser parser(options, &released);
  for (const std::string& letter : letters) {
    parser.feed(letter);
    if (letter == "F") {
      EXPECT_EQ(released.content, "ABC");
    }
    if (letter == "G") {
      EXPECT_EQ(released.content, "ABCDEFG");
    }
  }
  EXPECT_EQ(parser.finish(FinishReason::kStop), FinishReason::kStop);
  EXPECT_EQ(released.content, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
}

TEST(OutputParserTest, HoldsBackOnlyWhatMayBecomeMarkup) {
  const std::vector<std::pair<std::string, std::string>> steps = {{"One", "One"},
                                                                  {"\n", "One"},
                                                                  {"\n", "One"},
                                                                  {"two <", "One\n\ntwo "},
                                                                  {"b>", "One\n\ntwo <b>"},
                                                                  {"</thin", "One\n\ntwo <b>"},
                                                                  {"g>", "One\n\ntwo <b></thing>"},
                                                                  {"<｜DS", "One\n\ntwo <b></thing>"},
                                                                  {"ML ", "One\n\ntwo <b></thing><｜DSML "}};
  Parsed out;
  OutputParser parser(with_tools(), &out);
  for (const auto& [piece, expected] : steps) {
    parser.feed(piece);
    EXPECT_EQ(out.content, expected) << piece;
  }
}

TEST(OutputParserTest, ArgumentsStreamWithTheValue) {
  Parsed out;
  OutputParser parser(with_tools(), &out);
  parser.feed("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"sta");
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].arguments, "{\"sta");
  parser.feed("tion\" string=\"true\">B");
  EXPECT_EQ(out.calls[0].arguments, "{\"station\": \"B");
  parser.feed("7<");
  EXPECT_EQ(out.calls[0].arguments, "{\"station\": \"B7");
  parser.feed("x");
  EXPECT_EQ(out.calls[0].arguments, "{\"station\": \"B7<x");
}

TEST(OutputParserTest, MalformedCallsHaveDefinedOutcomes) {
  // An invoke inside an open invoke ends it.
  const Parsed melted =
      parse(with_tools(), {"<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" +
                           parameter("a", " string=\"false\"", "1") + "<｜DSML｜ invoke name=\"g\">\n" +
                           parameter("b", " string=\"true\"", "2") + "</｜DSML｜ invoke>\n</｜DSML｜ calls>"});
  ASSERT_EQ(melted.calls.size(), 2u);
  EXPECT_EQ(melted.calls[0].arguments, "{\"a\": 1}");
  EXPECT_TRUE(melted.calls[0].complete);
  EXPECT_EQ(melted.calls[1].name, "g");
  EXPECT_EQ(melted.calls[1].arguments, "{\"b\": \"2\"}");
  // The string attribute is missing or unknown.
  EXPECT_EQ(arguments_of(one_call(parameter("a", "", "[1, 2]"))), "{\"a\": [1, 2]}");
  EXPECT_EQ(arguments_of(one_call(parameter("a", "", "two words"))), "{\"a\": \"two words\"}");
  EXPECT_EQ(arguments_of(one_call(parameter("a", " string=\"maybe\"", "1e400"))), "{\"a\": 1e400}");
  EXPECT_EQ(arguments_of(one_call(parameter("a", " string=\"maybe\"", "\"x"))), "{\"a\": \"\\\"x\"}");
  // Raw values.
  EXPECT_EQ(arguments_of(one_call(parameter("a", " string=\"false\"", "") + parameter("b", " string=\"true\"", "k"))),
            "{\"a\": null, \"b\": \"k\"}");
  EXPECT_EQ(arguments_of(one_call(parameter("a", " string=\"false\"", "NaN"))), "{\"a\": NaN}");
  // Keys.
  EXPECT_EQ(arguments_of(one_call(parameter("a\"b c\\", " string=\"true\"", "1"))), "{\"a\\\"b c\\\\\": \"1\"}");
  // A tag that closes before its parameter has a value.
  EXPECT_EQ(arguments_of(one_call("<｜DSML｜ parameter name=\"a\"</｜DSML｜ parameter>\n" +
                                  parameter("b", " string=\"true\"", "k"))),
            "{\"a\\\"\": null, \"b\": \"k\"}");
  EXPECT_EQ(arguments_of(one_call("<｜DSML｜ parameter name=\"a\" string=\"tru</｜DSML｜ parameter>\n")),
            "{\"a\": null}");
  // The last parameter is never closed.
  EXPECT_EQ(
      arguments_of("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">v"
                   "</｜DSML｜ invoke>\n</｜DSML｜ calls>"),
      "{\"a\": \"v\"}");
}

TEST(OutputParserTest, CallsCutOffAreIncomplete) {
  const std::string text = one_call(parameter("a", "", "x") + parameter("b", " string=\"true\"", "y"));
  const size_t name_end = text.find("\"f\"") + 3;
  const size_t call_end = text.find("</｜DSML｜ invoke") + std::string("</｜DSML｜").size();
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const Parsed out = parse(with_tools(), {text.substr(0, cut)}, FinishReason::kLength);
    EXPECT_EQ(out.finish, "length");
    ASSERT_EQ(out.calls.size(), cut >= name_end ? 1u : 0u) << cut;
    if (out.calls.empty()) continue;
    EXPECT_TRUE(out.calls[0].ended);
    EXPECT_EQ(out.calls[0].complete, cut >= call_end) << cut;
    EXPECT_EQ(is_json(out.calls[0].arguments), cut >= call_end) << out.calls[0].arguments;
  }
}

TEST(OutputParserTest, JsonModeLosesNothing) {
  ParserOptions options = with_tools();
  options.json_mode = true;
  EXPECT_EQ(parse(options, {"No JSON, so", "rry."}).content, "No JSON, sorry.");
  EXPECT_EQ(parse(options, {"Sure: {\"a\": 1}"}).content, "{\"a\": 1}");
  const Parsed call = parse(options, {"{\"a\": 1}\n\n" + one_call(parameter("x", " string=\"false\"", "1"))});
  EXPECT_EQ(call.content, "{\"a\": 1}");
  ASSERT_EQ(call.calls.size(), 1u);
  EXPECT_EQ(call.calls[0].arguments, "{\"x\": 1}");
}

TEST(OutputParserTest, PlainModeKnowsOnlyStopSequences) {
  ParserOptions options;
  options.plain = true;
  options.markers = true;
  options.initial = InitialStage::kContentStart;
  options.stop_sequences = {"END"};
  EXPECT_EQ(parse(options, {"\n\na</think>", "\x01", "<｜DSML｜ calls>EN", "Dx"}).content,
            "\n\na</think></think><｜DSML｜ calls>");
}

TEST(OutputParserTest, LiteralsAreTextAndBreakMarkup) {
  ParserOptions options = with_tools(InitialStage::kReasoningStart);
  options.markers = true;
  options.stop_sequences = {"ab"};
  Parsed out;
  OutputParser parser(options, &out);
  parser.feed_literal("<think>");
  parser.feed("\nr\n");
  parser.feed_marker(Marker::kThinkClose);
  parser.feed("a");
  parser.feed_literal("b");
  parser.feed("<");
  parser.feed_literal("<｜User｜>");
  EXPECT_EQ(parser.finish(FinishReason::kStop), FinishReason::kStop);
  EXPECT_EQ(out.reasoning, "<think>\nr");
  EXPECT_EQ(out.content, "ab<<｜User｜>");
}

TEST(OutputParserTest, OptionsAreChecked) {
  ParserOptions options;
  options.stop_sequences = {"a", ""};
  EXPECT_FALSE(options.check().ok());
  options.stop_sequences.assign(33, "x");
  EXPECT_FALSE(options.check().ok());
  options.stop_sequences.assign(32, "x");
  EXPECT_TRUE(options.check().ok());
}

// Pieces that the grammar is made of, their beginnings, and things that look like them.
std::string random_output(std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {"<｜DSML｜ calls>\n",
                                                   "<｜DSML｜tool_calls>",
                                                   "<｜DSML｜ invoke name=\"f\">\n",
                                                   "<｜DSML｜ invoke name=\"",
                                                   "g\">",
                                                   "<｜DSML｜ parameter name=\"k\" string=\"true\">",
                                                   "<｜DSML｜ parameter name=\"k\" string=\"false\">",
                                                   "parameter name=\"",
                                                   "\" string=\"",
                                                   "\">",
                                                   "true\">",
                                                   "</｜DSML｜ parameter>\n",
                                                   "</｜DSML｜ invoke>\n",
                                                   "</｜DSML｜ calls>",
                                                   "</｜DSML｜tool_calls>",
                                                   "</think>",
                                                   "<think>",
                                                   "</thi",
                                                   "<｜DS",
                                                   "</",
                                                   "<",
                                                   "\n",
                                                   "\n\n",
                                                   "text",
                                                   "é",
                                                   "😀",
                                                   "米",
                                                   "\xE7\xB1",
                                                   "\xFF",
                                                   "\x80",
                                                   "\xF0\x9F",
                                                   "{",
                                                   "[",
                                                   "}",
                                                   "```json\n",
                                                   "```\n",
                                                   "\n```",
                                                   "\"",
                                                   "\\",
                                                   "STOP",
                                                   "STO",
                                                   "aab",
                                                   "aa",
                                                   "12",
                                                   "null",
                                                   " "};
  std::string text;
  const int n = 1 + static_cast<int>(random() % 24);
  for (int i = 0; i < n; ++i) {
    std::string piece = kPieces[random() % kPieces.size()];
    if (random() % 8 == 0) piece.resize(random() % (piece.size() + 1));
    text += piece;
  }
  return text;
}

TEST(OutputParserTest, AnyCuttingGivesTheSameResult) {
  std::mt19937_64 random(20261129);
  for (int round = 0; round < 20000; ++round) {
    const std::string text = random_output(random);
    ParserOptions options;
    options.parse_tool_calls = random() % 4 != 0;
    options.json_mode = random() % 4 == 0;
    options.markers = random() % 4 == 0;
    options.initial = static_cast<InitialStage>(random() % 5);
    if (random() % 2 == 0) options.stop_sequences = {"STOP", "aab", "b\n"};
    const auto engine = static_cast<FinishReason>(random() % 8);
    const Parsed whole = parse(options, {text}, engine);
    std::vector<std::string> bytes, pieces;
    for (char c : text) bytes.emplace_back(1, c);
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 9;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    // A one-byte piece could be read as a marker by parse().
    if (text.find_first_of("\x01\x02") != std::string::npos) continue;
    ASSERT_TRUE(parse(options, bytes, engine) == whole) << "round " << round << ": " << text;
    ASSERT_TRUE(parse(options, pieces, engine) == whole) << "round " << round << ": " << text;
    for (const Parsed::Call& call : whole.calls) ASSERT_TRUE(call.ended);
  }
}

TEST(OutputParserTest, TextWithoutMarkupComesOutWhole) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text = random_output(random);
    ParserOptions options;
    options.markers = true;  // nothing spelled is markup
    options.parse_tool_calls = true;
    options.initial = random() % 2 == 0 ? InitialStage::kReasoning : InitialStage::kContent;
    const Parsed out = parse(options, {text});
    Utf8Gate gate;
    EXPECT_EQ(out.reasoning + out.content, std::string(gate.push(text)));
  }
}

}  // namespace
}  // namespace deepinfer::recipe
