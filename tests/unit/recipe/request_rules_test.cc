// Rules of the request converters that the fixtures leave open: error paths, limits, and what goes beyond the service.
#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "recipe/conversation_json.h"
#include "recipe/render.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"
#include "recipe/sealed.h"

namespace deepinfer::recipe {
namespace {

constexpr Protocol C = Protocol::kChat, R = Protocol::kResponses, M = Protocol::kMessages, F = Protocol::kCompletions;

RequestOptions any_model() {
  RequestOptions o;
  o.models = {{"m", Version::kV41}};
  o.accept_any_model = true;
  return o;
}

// `rest` are the members beside the model and a harmless message.
std::string body(Protocol protocol, const std::string& rest) {
  const std::string tail = rest.empty() ? "}" : "," + rest + "}";
  switch (protocol) {
    case C: return R"({"model":"m","messages":[{"role":"user","content":"q"}])" + tail;
    case R: return R"({"model":"m","input":"q")" + tail;
    case M: return R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"q"}])" + tail;
    case F: return R"({"model":"m","prompt":"q")" + tail;
  }
  return {};
}

std::optional<ApiError> refusal(Protocol protocol, const std::string& text,
                                const RequestOptions& options = any_model()) {
  Request request;
  return parse_request(protocol, text, options, request);
}

Request accepted(Protocol protocol, const std::string& text, const RequestOptions& options = any_model()) {
  Request request;
  const auto error = parse_request(protocol, text, options, request);
  EXPECT_FALSE(error) << text << "\n" << error->message;
  return request;
}

TEST(RequestErrors, NameThePathOfTheFault) {
  const struct {
    Protocol protocol;
    std::string text, param;
  } cases[] = {
      {C, R"({"messages":[]})", "model"},
      {C, R"({"model":"m"})", "messages"},
      {C, R"({"model":"m","messages":{}})", "messages"},
      {C, R"({"model":"m","messages":[5]})", "messages[0]"},
      {C, R"({"model":"m","messages":[{"role":"user","content":"a"},{"role":"king","content":"a"}]})",
       "messages[1].role"},
      {C, R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"smell"}]}]})",
       "messages[0].content[1].type"},
      {C, R"({"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text"},
      {C,
       R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"ftp://x"}}]}]})",
       "messages[0].content[0]"},
      {C,
       body(C,
            R"("tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"b c"}}])"),
       "tools[1].function.name"},
      {C,
       body(C,
            R"("tools":[{"type":"function","function":{"name":"a","parameters":{"type":"object","properties":5}}}])"),
       "tools[0].function.parameters"},
      {C, body(C, R"("tool_choice":{"type":"function"})"), "tool_choice.function"},
      {C, body(C, R"("stop":["a",""])"), "stop[1]"},
      {C, body(C, R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"objekt"}}})"),
       "response_format.json_schema.schema"},
      {C, body(C, R"("thinking":{"type":"maybe"})"), "thinking.type"},
      {C, body(C, R"("n":9)"), "n"},
      {C, body(C, R"("reasoning_effort":101)"), "reasoning_effort"},
      {R,
       R"({"model":"m","input":[{"role":"user","content":"a"},{"type":"function_call","name":"f","arguments":"{}"}]})",
       "input[1].call_id"},
      {R, R"({"model":"m","input":[{"role":"user","content":[{"type":"input_image"}]}]})", "input[0].content[0]"},
      {R, R"({"model":"m","input":[{"type":"function_call_output","call_id":"","output":"x"}]})", "input[0].call_id"},
      {R, body(R, R"("tools":[{"type":"tool_search","execution":"x"}])"), "tools[0].execution"},
      {R, body(R, R"("tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"a b"}]}])"),
       "tools[0].tools[0].name"},
      {R, body(R, R"("text":{"format":{"type":"json_schema","name":"n"}})"), "text.format.schema"},
      {R, body(R, R"("reasoning":{"effort":7.5})"), "reasoning.effort"},
      {M,
       R"({"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"#"}}]}]})",
       "messages[0].content[0].source"},
      {M, body(M, R"("tools":[{"name":"a"}])"), "tools[0].input_schema"},
      {M, body(M, R"("output_config":{"format":{"type":"xml"}})"), "output_config.format.type"},
      {M,
       R"({"model":"m","messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input_":[]}]}]})",
       "messages[0].content[0].input"},
      {C, R"({"model":"m","messages":[{"role":"user","content":"a","name":5}]})", "messages[0].name"},
      {C,
       R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png,AAAA"}}]}]})",
       "messages[0].content[0]"},
      {C, R"({"model":"m","messages":[{"role":"user","content":[{"type":"file","file_data":"https://x/a.png"}]}]})",
       "messages[0].content[0]"},
      {F, R"({"model":"m"})", "prompt"},
      {F, body(F, R"("echo":true,"suffix":"x")"), "echo"},
  };
  for (const auto& c : cases) {
    const auto error = refusal(c.protocol, c.text);
    ASSERT_TRUE(error) << c.text;
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->param, c.param) << error->message;
    EXPECT_FALSE(error->message.empty());
  }
}

TEST(RequestErrors, BodiesHaveTheFormOfTheApi) {
  const ApiError error{.status = 429, .message = "a \"b\"", .param = "messages[0]"};
  EXPECT_EQ(
      error_body(C, error),
      R"({"error":{"message":"a \"b\"","type":"invalid_request_error","param":"messages[0]","code":"invalid_request_error"}})");
  EXPECT_EQ(error_body(M, error, "req_1"),
            R"({"type":"error","error":{"type":"rate_limit_error","message":"a \"b\""},"request_id":"req_1"})");
  const ApiError plain{.message = "x"};
  EXPECT_EQ(error_body(R, plain),
            R"({"error":{"message":"x","type":"invalid_request_error","param":null,"code":"invalid_request_error"}})");
}

TEST(RequestLimits, EachIsNamed) {
  const auto message = [](Protocol protocol, const std::string& text, const std::function<void(RequestLimits&)>& set) {
    RequestOptions o = any_model();
    set(o.limits);
    const auto error = refusal(protocol, text, o);
    return error ? error->message : std::string("accepted");
  };
  const std::string image = R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AAAAAAAA"}})";
  const std::string images = R"({"model":"m","messages":[{"role":"user","content":[)" + image + "," + image + "]}]}";
  const struct {
    std::string text, name;
    std::function<void(RequestLimits&)> set;
  } cases[] = {
      {body(C, ""), "body_bytes_max", [](RequestLimits& l) { l.body_bytes_max = 10; }},
      {body(C, R"("x":[[[]]])"), "json_depth_max", [](RequestLimits& l) { l.json_depth_max = 3; }},
      {body(C, ""), "json_values_max", [](RequestLimits& l) { l.json_values_max = 3; }},
      {images, "images_max", [](RequestLimits& l) { l.images_max = 1; }},
      {images, "image_bytes_max", [](RequestLimits& l) { l.image_bytes_max = 3; }},
      {images, "inline_image_bytes_max", [](RequestLimits& l) { l.inline_image_bytes_max = 8; }},
      {body(C, R"("user":"abcd")"), "user_id_bytes_max", [](RequestLimits& l) { l.user_id_bytes_max = 3; }},
      {body(C, R"("stop":"abcd")"), "stop_sequence_bytes_max", [](RequestLimits& l) { l.stop_sequence_bytes_max = 3; }},
      {R"({"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":"a"}]})", "messages_max",
       [](RequestLimits& l) { l.messages_max = 1; }},
      {body(C, R"("tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"b"}}])"),
       "tools_max", [](RequestLimits& l) { l.tools_max = 1; }},
      {body(C,
            R"("tools":[{"type":"function","function":{"name":"a","parameters":{"type":"object","title":"long"}}}])"),
       "schema_bytes_max", [](RequestLimits& l) { l.schema_bytes_max = 10; }},
  };
  for (const auto& c : cases)
    EXPECT_NE(message(C, c.text, c.set).find(c.name), std::string::npos) << message(C, c.text, c.set);
  RequestOptions small = any_model();
  small.limits.body_bytes_max = 10;
  EXPECT_EQ(refusal(C, body(C, ""), small)->status, 413);
}

// Requests built to take long or to grow: they must come back quickly, refused or not.
TEST(RequestLimits, HostileSizesStayLinear) {
  const int n = 40'000;
  std::string uses, results, references, refs, definitions;
  for (int i = 0; i < n; ++i) {
    const std::string id = std::to_string(i);
    uses += R"({"type":"tool_use","id":")" + id + R"(","name":"f","input":{}},)";
    results += R"({"type":"tool_result","tool_use_id":")" + std::to_string(n - 1 - i) + R"("},)";
    references += R"({"type":"tool_reference","tool_name":"f"},)";
  }
  for (int i = 0; i < 12'000; ++i) {
    const std::string id = std::to_string(i);
    definitions += "\"d" + id + "\":{},";
    refs += "{\"$ref\":\"#/$defs/d" + id + "\"},";
  }
  for (std::string* list : {&uses, &results, &references, &refs, &definitions}) list->pop_back();
  const Request answered =
      accepted(M, R"({"model":"m","messages":[{"role":"user","content":"q"},{"role":"assistant","content":[)" + uses +
                      R"(]},{"role":"user","content":[)" + results + "]}]}");
  EXPECT_EQ(answered.conversation.messages.size(), static_cast<size_t>(n) + 2);
  EXPECT_FALSE(render_request(answered).text.empty());
  const std::string tool =
      R"("tools":[{"name":"f","description":")" + std::string(5'000, 'd') + R"(","input_schema":{"type":"object"}}])";
  const auto announced = refusal(M, R"({"model":"m",)" + tool +
                                        R"(,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[
      {"type":"tool_use","id":"1","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[)" +
                                        references + "]}]}]}");
  ASSERT_TRUE(announced);
  EXPECT_NE(announced->message.find("announced_tools_bytes_max"), std::string::npos) << announced->message;
  const std::string schema = R"({"type":"object","anyOf":[)" + refs + R"(],"$defs":{)" + definitions + "}}";
  accepted(C, body(C, R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + schema + "}}]"));
  // A long name in a message is cut between characters.
  std::string long_name;
  for (int i = 0; i < 5'000; ++i) long_name += "é";
  for (
      const std::string& text :
      {R"({"model":"m","messages":[{"role":"x)" + long_name + R"("}]})",
       R"({"model":"m","messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":""}}]},{"role":"tool","content":"r","tool_call_id":")" +
           long_name + R"("}]})"}) {
    const auto error = refusal(C, text);
    ASSERT_TRUE(error);
    EXPECT_LE(error->message.size(), 2'000u);
    EXPECT_TRUE(parse_json(error_body(C, *error)).ok());
  }
  accepted(C, body(C, R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","maximum":)" +
                          std::string(300, '9') + "}}}]"));
  EXPECT_TRUE(refusal(C, body(C, "\"x\":" + std::string(1'000'000, '9'))));
}

// Every listed field: what is not ignored refuses nonsense by its path, what is ignored accepts it without effect.
TEST(RequestFields, BehaveAsTheTableSays) {
  for (const RequestField& field : request_fields()) {
    if (field.path.find_first_of(".[") != std::string_view::npos) continue;
    const std::string path(field.path);
    // include is lenient like the service's; storage is off here, which ignores both of its fields.
    if (field.protocol == R && (path == "include" || path == "previous_response_id" || path == "store")) continue;
    Result<Json> json = parse_json(body(field.protocol, ""));
    ASSERT_TRUE(json.ok());
    json.value().set(path, JsonArray{Json(JsonArray{})});
    Request request;
    const auto error = parse_request(field.protocol, to_compact_json(json.value()), any_model(), request);
    if (field.use == FieldUse::kIgnored) {
      EXPECT_FALSE(error) << path << ": " << error->message;
      Request plain = accepted(field.protocol, body(field.protocol, ""));
      EXPECT_TRUE(conversation_to_json(request.conversation) == conversation_to_json(plain.conversation)) << path;
      EXPECT_TRUE(inference_options_to_json(request.inference) == inference_options_to_json(plain.inference)) << path;
    } else {
      ASSERT_TRUE(error) << path;
      EXPECT_EQ(error->param.substr(0, path.size()), path) << error->message;
    }
  }
}

TEST(RequestFields, ThePageIsPrintedFromTheTable) {
  Result<std::string> page = read_file("docs/api-compatibility.md", 1 << 20);
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_EQ(page.value(), api_compatibility_markdown())
      << "run build/release/tools/api_compatibility > docs/api-compatibility.md";
}

TEST(ChatRequest, GoesBeyondTheService) {
  EXPECT_EQ(accepted(C, body(C, R"("n":3)")).inference.n, 3);
  EXPECT_EQ(accepted(C, body(C, R"("max_completion_tokens":7)")).inference.max_tokens, 7);
  EXPECT_EQ(accepted(C, body(C, R"("max_completion_tokens":7,"max_tokens":5)")).inference.max_tokens, 5);
  const Request effort = accepted(C, body(C, R"("reasoning_effort":37)"));
  EXPECT_NE(render_request(effort).text.find("Reasoning Effort: 37 "), std::string::npos);
  const Request developer = accepted(C, R"({"model":"m","messages":[{"role":"developer","content":"d"}]})");
  EXPECT_EQ(developer.conversation.messages[0].role, Role::kUser);
  const Request file = accepted(
      C,
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"data:image/png;base64,AAAA"}}]}]})");
  EXPECT_EQ(file.conversation.messages[0].content.images.size(), 1u);
  EXPECT_FALSE(accepted(C, body(C, R"("parallel_tool_calls":false)")).inference.parallel_tool_calls);
  const Request mixed = accepted(
      C,
      body(
          C,
          R"("tools":[{"type":"function","function":{"name":"a","strict":true}},{"type":"function","function":{"name":"b"}}])"));
  EXPECT_EQ(to_compact_json(mixed.conversation.tools[0].parameters),
            R"({"type":"object","properties":{},"additionalProperties":false,"required":[]})");
}

TEST(ChatRequest, CustomToolsAreFunctionsWithOneInput) {
  const Request r = accepted(
      C,
      R"({"model":"m","thinking":{"type":"disabled"},"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","type":"custom",
         "custom":{"name":"sql","input":"select \"a\""}}]},{"role":"tool","tool_call_id":"1","content":"r"}],
         "tools":[{"type":"custom","custom":{"name":"sql","description":"Ask.","format":{"type":"grammar","grammar":{"syntax":"regex","definition":"a+"}}}}],
         "tool_choice":{"type":"custom","custom":{"name":"sql"}}})");
  const Tool& tool = r.conversation.tools.at(0);
  EXPECT_TRUE(tool.custom);
  EXPECT_EQ(tool.syntax, CustomSyntax::kRegex);
  EXPECT_EQ(tool.definition, "a+");
  EXPECT_NE(tool.description->find("regex"), std::string::npos);
  EXPECT_EQ(r.conversation.messages[1].tool_calls[0].arguments, R"({"input":"select \"a\""})");
  EXPECT_EQ(r.inference.constraint.kind, ConstraintKind::kToolCallRequired);
  EXPECT_EQ(r.parsing.initial, InitialStage::kToolCalls);
}

TEST(ChatRequest, AllowedToolsKeepThePrompt) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"b"}}])";
  const Request all = accepted(C, body(C, tools));
  const Request some = accepted(
      C,
      body(
          C,
          tools +
              R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"b"}}]}})"));
  EXPECT_EQ(some.allowed_tools, std::vector<std::string>{"b"});
  EXPECT_EQ(render_request(all).text, render_request(some).text);
  EXPECT_TRUE(refusal(
      C,
      body(
          C,
          tools +
              R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"z"}}]}})")));
}

TEST(ChatRequest, AForcedCallWhileThinkingNeedsTheSwitch) {
  const std::string text = body(C, R"("tools":[{"type":"function","function":{"name":"a"}}],"tool_choice":"required")");
  EXPECT_EQ(refusal(C, text)->message, "Thinking mode does not support this tool_choice");
  RequestOptions o = any_model();
  o.allow_forced_tool_with_thinking = true;
  const Request r = accepted(C, text, o);
  EXPECT_TRUE(r.force_call_after_thinking);
  EXPECT_EQ(r.inference.constraint.kind, ConstraintKind::kToolCallRequired);
  EXPECT_EQ(r.parsing.initial, InitialStage::kReasoningStart);
  EXPECT_TRUE(render_request(r).text.ends_with("<think>"));
}

Sealer sealer(uint8_t key_byte, const std::string& family = "v4.1") {
  Sealer::Key key;
  key.fill(key_byte);
  return Sealer::create({key}, family).value();
}

std::string reasoning_request(const std::string& blob) {
  return R"({"model":"m","input":[{"role":"user","content":"q"},{"type":"reasoning","summary":[],"encrypted_content":")" +
         blob + R"("},{"role":"assistant","content":"a"}],"tools":[{"type":"function","name":"f"}]})";
}

TEST(ResponsesRequest, OpensItsOwnReasoningAndRefusesAllOther) {
  const Sealer own = sealer(1);
  RequestOptions o = any_model();
  o.sealer = &own;
  const std::string blob = own.seal("deep thought");
  EXPECT_EQ(accepted(R, reasoning_request(blob), o).conversation.messages[1].reasoning, "deep thought");
  std::string changed = blob;
  changed[blob.size() / 2] = changed[blob.size() / 2] == 'A' ? 'B' : 'A';
  const std::string bad[] = {changed,  blob.substr(0, blob.size() - 4), blob + "AAAA",       sealer(2).seal("x"),
                             "rs_1-0", sealer(1, "v4").seal("x"),       std::string(40, 'A')};
  for (const std::string& b : bad) {
    const auto error = refusal(R, reasoning_request(b), o);
    ASSERT_TRUE(error) << b;
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->code, "invalid_encrypted_content");
    EXPECT_EQ(error->param, "input[1].encrypted_content");
    EXPECT_NE(error->message.find("input[1]"), std::string::npos);
  }
  EXPECT_EQ(refusal(R, reasoning_request(blob))->code, "invalid_encrypted_content") << "a server without a key";
}

TEST(ResponsesRequest, StoredChainsPrecedeTheInput) {
  RequestOptions o = any_model();
  o.load_previous = [](std::string_view id) -> Result<std::vector<Json>> {
    if (id == "old") {
      return std::vector<Json>{
          parse_json(R"({"role":"user","content":"first"})").value(),
          parse_json(R"({"type":"message","role":"assistant","content":[{"type":"output_text","text":"second"}]})")
              .value()};
    }
    if (id == "busy") return Status(Code::kFailedPrecondition, "The response 'busy' is still running.");
    return Status(Code::kNotFound, "gone");
  };
  const Request r = accepted(R, body(R, R"("previous_response_id":"old")"), o);
  ASSERT_EQ(r.conversation.messages.size(), 3u);
  EXPECT_EQ(r.conversation.messages[0].content.text, "first");
  EXPECT_EQ(r.conversation.messages[2].content.text, "q");
  EXPECT_TRUE(r.store);
  ASSERT_EQ(r.input_items.size(), 1u);
  EXPECT_EQ(to_compact_json(r.input_items[0]), R"({"type":"message","role":"user","content":"q"})");
  EXPECT_FALSE(accepted(R, body(R, R"("store":false)"), o).store);
  const auto unknown = refusal(R, body(R, R"("previous_response_id":"lost")"), o);
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->message, "Previous response with id 'lost' not found.");
  EXPECT_EQ(unknown->code, "previous_response_not_found");
  EXPECT_EQ(unknown->param, "previous_response_id");
  EXPECT_EQ(refusal(R, body(R, R"("previous_response_id":"busy")"), o)->status, 400);
  EXPECT_EQ(accepted(R, body(R, R"("previous_response_id":"lost")")).conversation.messages.size(), 1u) << "storage off";
}

TEST(ResponsesRequest, EchoesWhatWasAsked) {
  const Request r = accepted(R, body(R, R"("metadata":{"a":"b"},"temperature":0.25,"tools":[{"type":"mcp"}],"zzz":1)"));
  EXPECT_EQ(to_compact_json(*r.echo.find("metadata")), R"({"a":"b"})");
  EXPECT_EQ(r.echo.find("temperature")->as_double(), 0.25);
  EXPECT_EQ(to_compact_json(*r.echo.find("tools")), R"([{"type":"mcp"}])");
  EXPECT_EQ(r.echo.find("zzz"), nullptr);
}

TEST(MessagesRequest, GoesBeyondTheService) {
  const Request any = accepted(
      M,
      body(
          M,
          R"("thinking":{"type":"disabled"},"tools":[{"type":"custom","name":"f","input_schema":{"type":"object"},"strict":true}],"tool_choice":{"type":"any","disable_parallel_tool_use":true})"));
  EXPECT_EQ(any.conversation.tool_choice, ToolChoice::kRequired);
  EXPECT_FALSE(any.inference.parallel_tool_calls);
  EXPECT_EQ(any.conversation.tools[0].strict, true);
  const Request document = accepted(
      M,
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"document","source":{"type":"text","media_type":"text/plain","data":"kept"}},
         {"type":"search_result","title":"T","source":"S","content":[{"type":"text","text":"found"}]}]}]})");
  EXPECT_EQ(document.conversation.messages[0].content.text, "kept");
  EXPECT_EQ(document.conversation.messages[1].content.text, "T\n\nS\n\nfound");
  const Sealer own = sealer(3);
  RequestOptions o = any_model();
  o.sealer = &own;
  o.messages_prefill = true;
  const Request redacted = accepted(
      M,
      R"({"model":"m","messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"redacted_thinking","data":")" +
          own.seal("hidden") + R"("},{"type":"redacted_thinking","data":"foreign"},{"type":"text","text":"begun"}]}]})",
      o);
  EXPECT_EQ(redacted.conversation.messages[1].reasoning, "hidden");
  EXPECT_TRUE(redacted.conversation.messages[1].prefix);
  EXPECT_EQ(redacted.parsing.initial, InitialStage::kContent);
}

TEST(Models, AreComparedExactlyAndClaudeNamesAreMapped) {
  RequestOptions o;
  o.models = {{"flash", Version::kV41}, {"pro", Version::kV4}};
  o.claude_opus_model = "pro";
  const auto with_model = [](const char* name) {
    return std::string(R"({"model":")") + name + R"(","messages":[{"role":"user","content":"q"}]})";
  };
  EXPECT_EQ(accepted(C, with_model("pro"), o).version, Version::kV4);
  EXPECT_EQ(refusal(C, with_model("Pro"), o)->message,
            "The supported API model names are flash, pro, but you passed Pro.");
  EXPECT_TRUE(refusal(C, with_model("claude-sonnet"), o));
  EXPECT_EQ(accepted(M, with_model("claude-opus-4"), o).version, Version::kV4);
  EXPECT_EQ(accepted(M, with_model("claude-sonnet"), o).version, Version::kV41);
  EXPECT_TRUE(refusal(M, with_model("gpt"), o));
}

TEST(ImageLiterals, AreTextUnlessTheServerRefusesThem) {
  const std::string text =
      R"({"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":"the tag <｜image｜>"}]})";
  EXPECT_EQ(render_request(accepted(C, text)).images.size(), 0u);
  RequestOptions o = any_model();
  o.reject_image_literal = true;
  EXPECT_EQ(refusal(C, text, o)->param, "messages[1]");
}

TEST(Sampling, ThePolicyDecidesWhatThinkingMayChange) {
  const std::string text = body(C, R"("temperature":0.25,"top_p":0.5)");
  EXPECT_EQ(accepted(C, text).inference.temperature, 0.25);
  EXPECT_EQ(accepted(C, text).inference.top_p, 0.5);
  RequestOptions service = any_model();
  service.sampling_policy = SamplingPolicy::kDeepSeek;
  EXPECT_EQ(accepted(C, text, service).inference.temperature, 1.0);
  EXPECT_EQ(accepted(C, text, service).inference.top_p, 0.95);
}

TEST(CompletionsRequest, FillsOrContinues) {
  const Request fill = accepted(F, body(F, R"("suffix":"<｜fim▁end｜>","max_tokens":5)"));
  const Prompt prompt = render_request(fill);
  EXPECT_EQ(prompt.text, "<｜begin▁of▁sentence｜><｜fim▁begin｜>q<｜fim▁hole｜><｜fim▁end｜><｜fim▁end｜>");
  EXPECT_EQ(prompt.specials.size(), 4u);
  EXPECT_EQ(render_request(accepted(F, body(F, ""))).text, "<｜begin▁of▁sentence｜>q");
}

std::string with_prompt(std::string_view prompt) { return fmt::format(R"({{"model":"m","prompt":{}}})", prompt); }

TEST(CompletionsRequest, TakesTokenIdsAndListsOfPrompts) {
  EXPECT_EQ(accepted(F, with_prompt(R"(["q"])")).completion->prompts[0].text, "q");
  for (const char* ids : {"[3,0,7]", "[[3,0,7]]"}) {
    const Request r = accepted(F, with_prompt(ids));
    ASSERT_EQ(prompt_count(r), 1u) << ids;
    EXPECT_EQ(r.completion->prompts[0].ids, (std::vector<int32_t>{3, 0, 7})) << ids;
  }
  const Request mixed = accepted(F, with_prompt(R"(["a",[5],""])"));
  ASSERT_EQ(prompt_count(mixed), 3u);
  EXPECT_EQ(render_request(mixed, 0).text, "<｜begin▁of▁sentence｜>a");
  EXPECT_EQ(mixed.completion->prompts[1].ids, std::vector<int32_t>{5});
  EXPECT_EQ(render_request(mixed, 2).text, "<｜begin▁of▁sentence｜>");
}

TEST(CompletionsRequest, NamesTheWrongPrompt) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "prompt"},           {"[[]]", "prompt[0]"},         {R"(["a",[]])", "prompt[1]"},
      {R"([1,"a"])", "prompt[1]"}, {R"(["a",1])", "prompt[1]"},   {"[1.5]", "prompt[0]"},
      {"[-1]", "prompt[0]"},      {"[4294967296]", "prompt[0]"}, {R"(["a",[7,null]])", "prompt[1][1]"},
      {"[null]", "prompt[0]"},    {"7", "prompt"},               {R"([{"a":1}])", "prompt[0]"}};
  for (const auto& [bad, param] : cases) {
    const auto error = refusal(F, with_prompt(bad));
    ASSERT_TRUE(error) << bad;
    EXPECT_EQ(error->param, param) << bad;
  }
  EXPECT_EQ(refusal(F, R"({"model":"m","prompt":["a",[1]],"suffix":"x"})")->param, "suffix");
  EXPECT_EQ(refusal(F, body(F, R"("n":0)"))->param, "n");
  RequestOptions few = any_model();
  few.limits.prompts_max = 2;
  EXPECT_EQ(prompt_count(accepted(F, with_prompt(R"(["a","b"])"), few)), 2u);
  Request out;
  const auto error = parse_request(F, with_prompt(R"(["a","b","c"])"), few, out);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->param, "prompt");
}

}  // namespace
}  // namespace deepinfer::recipe
