// The converter of Responses requests (spec/protocol.md 10): options and tools in request_responses.cc, input items in
// responses_items.cc. Internal to the room.
#pragma once

#include <map>
#include <set>

#include "recipe/request_reader.h"

namespace deepinfer::recipe {

class ResponsesReader : public RequestReader {
 public:
  using RequestReader::RequestReader;

 private:
  enum class Parts { kMessage, kAssistant, kOutput };
  struct Output {
    Content content;
    std::vector<Tool> found;  // by a tool search
    int32_t source = -1;
  };

  bool convert(Json& body) override;

  // Options and tools.
  bool echo(const Json& body);
  bool read_options(const Json& body);
  bool read_reasoning(const Json& body);
  bool read_text(const Json& body);
  bool read_tools(Json& body);
  // Function, namespace and custom tools; every other kind is dropped. found: the tools are a search's result.
  bool read_tool_list(JsonArray& list, const Path& at, std::vector<Tool>& out, bool found);
  bool read_tool_search(Json& item, const Path& at, std::vector<Tool>& out);
  bool read_namespace(Json& item, const Path& at, std::vector<Tool>& out);
  std::string separator() const { return out_.version == Version::kV41 ? "::" : "__"; }
  // Two namespaces may have one name, and V4's joined names can equal a function's: a number tells them apart.
  void number_namespaced(std::vector<Tool>& tools);
  // Only notes the choice; it is applied once the tools that the input announces are known.
  bool read_choice(const Json& body);
  bool finish_tools();
  bool check_whole();

  // Input items.
  bool read_previous(const Json& body);
  bool read_input(Json& body);
  bool read_item(Json& item, const Path& at, int32_t source);
  bool read_message(Json& item, const Path& at);
  bool read_content(Json& value, const Path& at, Parts parts, Content& out);
  bool read_part(Json& part, const Path& at, Parts parts, Content& out);
  bool read_reasoning_item(Json& item, const Path& at);
  bool read_reasoning_text(Json& item, const Path& at, std::optional<std::string>& text);
  // Texts of a list of parts, joined by a newline.
  bool read_texts(Json& item, const Path& at, std::string_view key, std::optional<std::string>& out);
  Message& add(Role role);
  // The assistant turn that the next assistant item continues, or null.
  Message* trailing_assistant();

  // Calls are collected until all are answered; then they become one assistant turn followed by the results.
  bool read_call_id(const Json& item, const Path& at, std::string& id);
  bool open_call(Json& item, const Path& at, ToolCall& call);
  bool read_call_name(Json& item, const Path& at, ToolCall& call);
  bool read_call(Json& item, const Path& at);
  bool read_custom_call(Json& item, const Path& at);
  bool read_search_call(Json& item, const Path& at);
  bool read_output(Json& item, const Path& at);
  bool read_search_output(Json& item, const Path& at);
  bool answer(std::string id, Content content, std::vector<Tool> found, const Path& at);
  bool close_calls();
  void announce(std::vector<Tool> found);
  bool check_answered(const Path& at);

  std::set<std::string> flat_names_;
  ToolChoice choice_ = ToolChoice::kAuto;
  std::string named_;
  std::vector<Json> previous_;
  int32_t source_ = -1;                    // of the item being read
  std::vector<ToolCall> calls_;            // of the open group
  std::map<std::string, Output> outputs_;  // of the open group
  std::vector<std::string> searches_;      // tool searches of the open group, in the order of their outputs
  std::set<std::string> all_calls_, answered_;
};

}  // namespace deepinfer::recipe
