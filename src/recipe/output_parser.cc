#include "recipe/output_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "recipe/json.h"
#include "recipe/json_check.h"

namespace deepinfer::recipe {
namespace {

// In marker mode a marker is one byte that valid UTF-8 never holds.
constexpr char kThinkCloseByte = '\xFE';
constexpr char kDsmlByte = '\xFF';
constexpr std::string_view kThinkCloseText = "</think>";
constexpr std::string_view kDsmlText = "｜DSML｜";

enum class Action : uint8_t {
  kStopSequence,
  kBeginCalls,
  kThinkClose,
  kFence,
  kJsonStart,
  kFenceEnd,
  kInvoke,
  kEndCalls,
  kNameEnd,
  kParameter,
  kCloseCall,
  kKeyEnd,
  kKeyEndUntyped,
  kTypeString,
  kTypeRaw,
  kTypeUnknown,
  kAbandonKey,
  kAbandonType,
  kCloseValue,
};

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  static constexpr std::array<std::string_view, 9> kNames = {"stop",          "tool_calls",     "stop_sequence",
                                                             "length",        "context_full",   "content_filter",
                                                             "end_of_stream", "out_of_capacity", "cancelled"};
  return kNames[static_cast<size_t>(reason)];
}

Status ParserOptions::check() const {
  if (stop_sequences.size() > kMaxStopSequences) {
    return make_error(Code::kInvalidArgument, "{} stop sequences are given; at most {} are possible.",
                      stop_sequences.size(), kMaxStopSequences);
  }
  for (const std::string& stop : stop_sequences) {
    if (stop.empty())
      return Status(Code::kInvalidArgument, "A stop sequence is empty; each needs at least one character.");
  }
  return {};
}

struct OutputParser::StagePatterns {
  PatternSet set;
  std::vector<Action> actions;
  size_t stops = 0;  // the first `stops` patterns are the stop sequences
};

std::shared_ptr<const OutputParser::StagePatterns> OutputParser::make_patterns(Stage stage, const ParserOptions& o) {
  const std::string dsml = o.markers ? std::string(1, kDsmlByte) : std::string(kDsmlText);
  const std::string think_close = o.markers ? std::string(1, kThinkCloseByte) : std::string(kThinkCloseText);
  const std::string close = "</" + dsml;
  const bool tools = o.parse_tool_calls && !o.plain;

  auto made = std::make_shared<StagePatterns>();
  std::vector<PatternSet::Pattern> patterns;
  const auto add = [&](std::string literal, Action action, bool takes_newlines = false) {
    patterns.push_back({std::move(literal), takes_newlines});
    made->actions.push_back(action);
  };
  const auto add_stops = [&] {
    for (const std::string& stop : o.stop_sequences) add(stop, Action::kStopSequence);
    made->stops = patterns.size();
  };
  const auto add_begin = [&] {
    if (tools) add("<" + dsml, Action::kBeginCalls, true);
  };
  switch (stage) {
    case Stage::kReasoning:
      add_begin();
      add(think_close, Action::kThinkClose, true);
      break;
    case Stage::kContent:
      add_stops();
      add_begin();
      if (!o.plain) add(think_close, Action::kThinkClose);
      break;
    case Stage::kJsonSearch:
      add("```json\n", Action::kFence);
      add("```\n", Action::kFence);
      add("{", Action::kJsonStart);
      add("[", Action::kJsonStart);
      add_begin();
      add(think_close, Action::kThinkClose);
      break;
    case Stage::kJson:
      add_stops();
      add("\n```", Action::kFenceEnd);
      add_begin();
      break;
    case Stage::kAfterJson: add_begin(); break;
    case Stage::kToolCalls:
      add("invoke name=\"", Action::kInvoke);
      add(close + "tool_calls>", Action::kEndCalls);
      add(close + " calls>", Action::kEndCalls);
      break;
    case Stage::kToolName: add("\"", Action::kNameEnd); break;
    case Stage::kArguments:
      add("parameter name=\"", Action::kParameter);
      add(close, Action::kCloseCall);
      add("invoke name=\"", Action::kInvoke);
      break;
    case Stage::kParameterName:
      add("\" string=\"", Action::kKeyEnd);
      add("\">", Action::kKeyEndUntyped);
      add(close, Action::kAbandonKey);
      break;
    case Stage::kParameterType:
      add("true\">", Action::kTypeString);
      add("false\">", Action::kTypeRaw);
      add("\">", Action::kTypeUnknown);
      add(close, Action::kAbandonType);
      break;
    case Stage::kStringValue:
    case Stage::kRawValue:
    case Stage::kUntypedValue: add(close, Action::kCloseValue); break;
    case Stage::kFinished: break;
  }
  made->set = PatternSet(std::move(patterns));
  return made;
}

OutputParser::OutputParser(const ParserOptions& options, OutputSink* sink)
    : sink_(sink),
      markers_(options.markers),
      json_mode_(options.json_mode && !options.plain),
      newline_stops_(std::find(options.stop_sequences.begin(), options.stop_sequences.end(), "\n") !=
                     options.stop_sequences.end()),
      stops_(options.stop_sequences) {
  // Stages without stop sequences are the same in every request of a mode.
  static const auto kShared = [] {
    std::array<std::array<std::shared_ptr<const StagePatterns>, kStages>, 4> shared;
    for (size_t kind = 0; kind < 4; ++kind) {
      ParserOptions o;
      o.markers = (kind & 1) != 0;
      o.parse_tool_calls = (kind & 2) != 0;
      for (int s = 0; s < kStages; ++s) shared[kind][s] = make_patterns(static_cast<Stage>(s), o);
    }
    return shared;
  }();
  const size_t kind = (options.markers ? 1 : 0) + (options.parse_tool_calls ? 2 : 0);
  for (int s = 0; s < kStages; ++s) patterns_[s] = kShared[kind][s];
  if (!stops_.empty() || options.plain) {
    for (const Stage s : {Stage::kContent, Stage::kJson}) patterns_[static_cast<int>(s)] = make_patterns(s, options);
  }
  const Stage content = json_mode_ ? Stage::kJsonSearch : Stage::kContent;
  switch (options.initial) {
    case InitialStage::kReasoningStart: enter(Stage::kReasoning, true); break;
    case InitialStage::kReasoning: enter(Stage::kReasoning); break;
    case InitialStage::kContentStart: enter(content, !options.plain); break;
    case InitialStage::kContent: enter(content); break;
    case InitialStage::kToolCalls: enter(Stage::kToolCalls); break;
  }
}

void OutputParser::enter(Stage stage, bool lead) {
  stage_ = stage;
  lead_ = lead;
  state_.restart();
}

void OutputParser::feed(std::string_view bytes) {
  const std::string_view text = gate_.push(bytes);
  piece_begin_ = position_ + gate_.from_earlier();
  consume(text);
}

void OutputParser::break_off_character() {
  const std::string_view replacement = gate_.break_off();
  piece_begin_ = position_ + replacement.size();
  consume(replacement);
}

void OutputParser::feed_marker(Marker marker) {
  break_off_character();
  if (!markers_) {
    consume(marker == Marker::kDsml ? kDsmlText : kThinkCloseText);
    return;
  }
  last_marker_end_ = position_ + 1;
  const char byte = marker == Marker::kDsml ? kDsmlByte : kThinkCloseByte;
  consume({&byte, 1});
}

void OutputParser::feed_literal(std::string_view text) {
  break_off_character();
  if (text.empty()) return;
  emit_until(position_, {}, position_);
  state_.restart();
  lead_ = false;
  if (stage_ != Stage::kFinished) output(text, position_);
  position_ += text.size();
  emitted_ = position_;
}

void OutputParser::drop_leading_newlines(std::string_view text, size_t* pos) {
  while (*pos < text.size() && text[*pos] == '\n') {
    if (newline_stops_ && stage_ == Stage::kContent) break;
    ++*pos;
    ++emitted_;
  }
  if (*pos < text.size()) lead_ = false;
}

void OutputParser::consume(std::string_view text) {
  if (text.empty()) return;
  const uint64_t text_begin = position_;
  position_ += text.size();
  size_t pos = 0;
  while (pos < text.size() && stage_ != Stage::kFinished) {
    if (lead_) {
      drop_leading_newlines(text, &pos);
      continue;
    }
    const StagePatterns& patterns = *patterns_[static_cast<int>(stage_)];
    const int pattern = patterns.set.scan(state_, text, &pos);
    if (pattern < 0) break;
    const uint64_t match_end = text_begin + pos;
    emit_until(match_end - patterns.set.match_length(state_, pattern), text, text_begin);
    held_.clear();
    held_begin_ = 0;
    emitted_ = match_end;
    on_match(pattern, match_end);
  }
  if (stage_ == Stage::kFinished) {
    held_.clear();
    held_begin_ = 0;
    emitted_ = position_;
    return;
  }
  emit_until(position_ - patterns_[static_cast<int>(stage_)]->set.held(state_), text, text_begin);
  hold_rest(text, text_begin);
}

void OutputParser::emit_until(uint64_t end, std::string_view text, uint64_t text_begin) {
  if (emitted_ < std::min(end, text_begin)) {
    const size_t n = std::min(end, text_begin) - emitted_;
    output(std::string_view(held_).substr(held_begin_, n), emitted_);
    held_begin_ += n;
    emitted_ += n;
  }
  if (emitted_ < end) {
    output(text.substr(emitted_ - text_begin, end - emitted_), emitted_);
    emitted_ = end;
  }
}

void OutputParser::hold_rest(std::string_view text, uint64_t text_begin) {
  // Moving the withheld bytes to the front only when as many are used up keeps the work linear.
  if (held_begin_ >= held_.size() - held_begin_) {
    held_.erase(0, held_begin_);
    held_begin_ = 0;
  }
  held_.append(text.substr(std::max(emitted_, text_begin) - text_begin));
}

void OutputParser::on_match(int pattern, uint64_t match_end) {
  const StagePatterns& patterns = *patterns_[static_cast<int>(stage_)];
  switch (patterns.actions[pattern]) {
    case Action::kStopSequence: stop_ = pattern; return enter(Stage::kFinished);
    case Action::kBeginCalls: preface_.clear(); return enter(Stage::kToolCalls);
    case Action::kThinkClose:
      if (stage_ == Stage::kReasoning) return enter(json_mode_ ? Stage::kJsonSearch : Stage::kContent, true);
      return enter(stage_);
    case Action::kFence: preface_.clear(); return enter(Stage::kJson);
    case Action::kJsonStart:
      preface_.clear();
      emitted_ = match_end - 1;
      return enter(Stage::kJson);
    case Action::kFenceEnd: return enter(Stage::kAfterJson);
    case Action::kInvoke:
      if (call_open_) close_call(true);
      name_.clear();
      return enter(Stage::kToolName);
    case Action::kEndCalls: return enter(Stage::kFinished);
    case Action::kNameEnd:
      sink_->on_call_begin(calls_++, name_);
      call_open_ = true;
      parameters_ = 0;
      return enter(Stage::kArguments);
    case Action::kParameter: open_parameter(); return enter(Stage::kParameterName);
    case Action::kCloseCall: close_call(true); return enter(Stage::kToolCalls);
    case Action::kKeyEnd: close_key(); return enter(Stage::kParameterType);
    case Action::kKeyEndUntyped: close_key(); return enter(Stage::kUntypedValue);
    case Action::kTypeString: arguments("\""); return enter(Stage::kStringValue);
    case Action::kTypeRaw: value_blank_ = true; return enter(Stage::kRawValue);
    case Action::kTypeUnknown: return enter(Stage::kUntypedValue);
    case Action::kAbandonKey:
      close_key();
      arguments("null");
      return enter(Stage::kArguments);
    case Action::kAbandonType: arguments("null"); return enter(Stage::kArguments);
    case Action::kCloseValue:
      if (stage_ == Stage::kStringValue) arguments("\"");
      if (stage_ == Stage::kRawValue) close_raw_value();
      if (stage_ == Stage::kUntypedValue) close_untyped_value(true);
      return enter(Stage::kArguments);
  }
}

std::string_view OutputParser::expand_markers(std::string_view piece) {
  expanded_.clear();
  for (const char c : piece) {
    if (c == kDsmlByte) {
      expanded_ += kDsmlText;
    } else if (c == kThinkCloseByte) {
      expanded_ += kThinkCloseText;
    } else {
      expanded_ += c;
    }
  }
  return expanded_;
}

void OutputParser::output(std::string_view piece, uint64_t begin) {
  if (piece.empty()) return;
  const SourceRange source{begin, begin + piece.size()};
  if (begin < last_marker_end_) piece = expand_markers(piece);
  switch (stage_) {
    case Stage::kReasoning: return sink_->on_reasoning(piece, source);
    case Stage::kContent:
    case Stage::kJson: return sink_->on_content(piece, source);
    case Stage::kJsonSearch:
      if (preface_.empty()) preface_source_.begin = source.begin;
      preface_source_.end = source.end;
      preface_ += piece;
      return;
    case Stage::kToolName: name_ += piece; return;
    case Stage::kParameterName:
    case Stage::kStringValue: return escaped_arguments(piece);
    case Stage::kRawValue:
      value_blank_ = value_blank_ && piece.find_first_not_of(" \t\r\n") == std::string_view::npos;
      return arguments(piece);
    case Stage::kUntypedValue: untyped_ += piece; return;
    case Stage::kAfterJson:
    case Stage::kToolCalls:
    case Stage::kArguments:
    case Stage::kParameterType:
    case Stage::kFinished: return;
  }
}

void OutputParser::arguments(std::string_view json) { sink_->on_call_arguments(calls_ - 1, json); }

void OutputParser::escaped_arguments(std::string_view text) {
  escaped_.clear();
  append_json_escaped(escaped_, text);
  arguments(escaped_);
}

void OutputParser::open_parameter() {
  arguments(parameters_++ == 0 ? "{" : ", ");
  sink_->on_call_part(calls_ - 1, CallPart::kKey);
  arguments("\"");
}

void OutputParser::close_key() {
  arguments("\": ");
  sink_->on_call_part(calls_ - 1, CallPart::kValue);
}

void OutputParser::close_call(bool complete) {
  if (complete) arguments(parameters_ == 0 ? "{}" : "}");
  call_open_ = false;
  sink_->on_call_end(calls_ - 1, complete);
}

void OutputParser::close_raw_value() {
  if (value_blank_) arguments("null");
}

void OutputParser::close_untyped_value(bool complete) {
  if (is_json(untyped_)) {
    arguments(untyped_);
  } else if (complete || !untyped_.empty()) {
    arguments("\"");
    escaped_arguments(untyped_);
    if (complete) arguments("\"");
  }
  untyped_.clear();
}

FinishReason OutputParser::finish(FinishReason engine_reason) {
  gate_.drop();
  if (stage_ == Stage::kParameterName && state_.live != 0 && held_.compare(held_begin_, 1, "\"") == 0) {
    // The quote that was withheld ends the key.
    close_key();
  } else {
    emit_until(position_, {}, position_);
  }
  if (!preface_.empty()) sink_->on_content(preface_, preface_source_);
  if (stage_ == Stage::kUntypedValue) close_untyped_value(false);
  if (call_open_) close_call(false);
  enter(Stage::kFinished);
  if (stop_ >= 0) return FinishReason::kStopSequence;
  if (engine_reason == FinishReason::kStop && calls_ > 0) return FinishReason::kToolCalls;
  return engine_reason;
}

}  // namespace deepinfer::recipe
