// What the three request converters share: reading JSON members with exact error paths, and the fields that the APIs
// have in common. Internal to the room; a converter derives from RequestReader.
//
// Functions return false after fail(); the first fault wins. A member that is null counts as absent.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "recipe/request.h"

namespace deepinfer::recipe {

// A place in the request, printed only when something is wrong there. Holds a pointer to its parent: keep parents in
// named variables.
class Path {
 public:
  Path() = default;
  Path operator/(std::string_view key) const& { return {this, key, -1}; }
  Path operator[](size_t index) const& { return {this, {}, static_cast<int64_t>(index)}; }
  Path operator/(std::string_view) const&& = delete;
  Path operator[](size_t) const&& = delete;
  std::string to_string() const;

 private:
  Path(const Path* parent, std::string_view key, int64_t index) : parent_(parent), key_(key), index_(index) {}
  const Path* parent_ = nullptr;
  std::string_view key_;
  int64_t index_ = -1;
};

// The text cut to at most `bytes`, between characters: user text in messages.
std::string_view clip(std::string_view text, size_t bytes);

inline bool is_set(const Json* value) { return value != nullptr && !value->is_null(); }

class RequestReader {
 public:
  RequestReader(const RequestOptions& options, Request& out) : options_(options), out_(out) {}
  virtual ~RequestReader() = default;

  std::optional<ApiError> run(Json body);

 protected:
  virtual bool convert(Json& body) = 0;

  // A refusal with the API's wording.
  bool fail(const Path& at, std::string message);
  // "invalid request body: `PATH`: what"
  bool bad(const Path& at, std::string_view what);
  bool over_limit(const Path& at, std::string_view limit, size_t limit_value);

  // Members. `required` refuses absence.
  bool read(const Json& object, const Path& at, std::string_view key, std::string& out, bool required = false);
  bool read(const Json& object, const Path& at, std::string_view key, bool& out);
  bool read(const Json& object, const Path& at, std::string_view key, std::optional<bool>& out);
  bool read(const Json& object, const Path& at, std::string_view key, std::optional<double>& out);
  bool read(const Json& object, const Path& at, std::string_view key, std::optional<int64_t>& out);
  bool read(const Json& object, const Path& at, std::string_view key, std::optional<std::string>& out);
  bool missing(const Path& at, std::string_view key);
  bool expect_object(const Json& value, const Path& at);
  bool expect_array(const Json& value, const Path& at);
  // The `type` of a tagged object.
  bool read_type(const Json& value, const Path& at, std::string& out);
  bool unknown_value(const Path& at, std::string_view value, std::string_view expected);

  // Fields in common. Body-level path is root_.
  bool read_model(const Json& body);
  const ServedModel* model_alias(std::string_view name) const;
  bool read_sampling(const Json& body);                              // temperature, top_p, stream
  bool read_max_tokens(const Json& body, std::string_view key, bool lower_to_bound = false);
  bool read_top_logprobs(const Json& body);
  bool read_seed(const Json& body);
  bool read_n(const Json& body);
  bool read_sampler(const Json& body);                               // SamplerOptions
  bool read_penalty(const Json& body, std::string_view key, double& out);
  bool read_stream_options(const Json& body);
  bool read_stops(const Json& body, std::string_view key);
  bool read_user(const Json& object, const Path& at, std::string_view key);
  bool read_effort(const Json& object, const Path& at, std::string_view key);
  bool read_thinking(const Json& body);
  bool read_schema_format(const Json& format, const Path& at);       // name, schema, strict of json_schema
  bool set_thinking();                                               // after thinking and effort were read

  // Tools. name_at is the path that wording about the name uses.
  bool check_tool_name(std::string_view name, const Path& name_at);
  bool read_function(Json& function, const Path& at, std::string_view schema_key, Tool& out);
  bool read_custom(Json& custom, const Path& at, bool nested_grammar, Tool& out);
  bool finish_parameters(Tool& tool, bool given, const Path& at);
  bool check_unique_tools(const Path& at);
  // Counts a tool that a message announces: each is printed again.
  bool count_announced(const Tool& tool, const Path& at);
  // Applies a choice once all tools are known. named: the tool that must be called, or empty.
  bool apply_tool_choice(ToolChoice choice, std::string_view named, const Path& at);

  // Images: append a placeholder to `content`, or V4's text in its place. `field` is what wording calls the URL.
  bool add_image_url(Content& content, std::string url, const std::optional<std::string>& detail, const Path& at,
                     std::string_view field);
  bool add_image_data(Content& content, std::string_view media_type, std::string_view data, const Path& at);
  bool add_image(Content& content, Image image, const Path& at);
  bool check_base64(std::string_view data, size_t& decoded_bytes) const;
  bool too_many(const Path& at, size_t count, size_t limit, std::string_view name);

  // Thinking off: history has no reasoning. On: what is missing becomes empty, or is refused where the policy says so
  // (spec 5.3): in the turns after the last user message, if they made calls or the request declares tools. `name` is
  // the member that the API calls it, `list` the member that messages stand in.
  bool finish_reasoning(std::string_view name, std::string_view list);

  // Derives parsing options, constraint and sampling from the conversation.
  bool finish();
  bool mentions_json() const;
  bool check_image_literals();

  const RequestOptions& options_;
  Request& out_;
  ApiError error_;
  const Path root_;
  size_t announced_bytes_ = 0;
  size_t images_ = 0;
  size_t inline_image_bytes_ = 0;
  std::optional<bool> thinking_;
  std::optional<std::string> effort_;
  std::optional<int64_t> effort_number_;
  bool tools_declared_ = false;  // before a tool choice emptied the list
  Json constraint_schema_;  // of a json_schema format, strict-completed where asked
};

}  // namespace deepinfer::recipe
