// Turns a model's output into reasoning, answer text and tool calls while it arrives (spec/protocol.md 8).
//
//   ParserOptions options;
//   options.initial = InitialStage::kReasoningStart;
//   OutputParser parser(options, &sink);
//   parser.feed("weigh it</thi");                    // sink.on_reasoning("weigh it"); "</thi" is withheld
//   parser.feed("nk>forty");                         // sink.on_content("forty")
//   parser.finish(FinishReason::kStop);              // kStop; ends what is open
//
// The result does not depend on how the output is cut, also within a character. Only bytes that may still become markup
// or a stop sequence are withheld, and they come out as text when they do not. Time is linear in the output.
//
// Two modes. Text mode: "</think>" and "｜DSML｜" count by their spelling. Marker mode, for outputs whose token ids are
// known: only feed_marker brings structure, the same letters fed as text are text. TokenOutput (token_output.h) feeds
// ids.
//
// Tool-call arguments come out as the text of a JSON object with the separators ", " and ": ". Where the model breaks
// the format: an invoke inside an open invoke ends it; a parameter without a known `string` attribute is raw if it is
// valid JSON, else a string; an empty raw value is null; a closing tag inside a parameter's tag makes its value null;
// other raw values pass byte for byte, valid JSON or not (8.3, 8.6). In JSON mode text around the JSON is left out
// instead of replaced by spaces; if no JSON came, the text comes out at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "recipe/conversation.h"
#include "recipe/output_events.h"
#include "recipe/pattern_set.h"
#include "recipe/utf8_gate.h"

namespace deepinfer::recipe {

// A request's ParsingOptions and how its output arrives.
struct ParserOptions : ParsingOptions {
  static constexpr size_t kMaxStopSequences = 32;

  bool markers = false;  // marker mode
  bool plain = false;    // no markup at all, only stop sequences: fill-in-the-middle and plain completions

  // kInvalidArgument for an empty stop sequence or more than kMaxStopSequences.
  Status check() const;
};

enum class Marker : uint8_t { kThinkClose, kDsml };

class OutputParser {
 public:
  // Options must pass check(); the sink must outlive the parser.
  OutputParser(const ParserOptions& options, OutputSink* sink);
  OutputParser(const OutputParser&) = delete;
  OutputParser& operator=(const OutputParser&) = delete;

  // Ordinary text, cut anywhere.
  void feed(std::string_view bytes);
  void feed_marker(Marker marker);
  // Text of a special token that is no marker: output of the current stage, never part of markup or a stop sequence.
  void feed_literal(std::string_view text);
  // Ends the output: releases withheld text, ends an open call, and names the reason. Call once.
  FinishReason finish(FinishReason engine_reason);

  // True once a stop sequence has matched: nothing fed afterwards counts.
  bool stopped() const { return stop_ >= 0; }
  // The stop sequence that matched; empty if none did.
  std::string_view stop_sequence() const { return stop_ < 0 ? std::string_view() : stops_[stop_]; }
  int calls() const { return calls_; }
  bool in_reasoning() const { return stage_ == Stage::kReasoning; }
  // Bytes fed so far in terms of SourceRange, without an unfinished character.
  uint64_t position() const { return position_; }
  // Everything before is output, or will never be.
  uint64_t settled() const { return preface_.empty() ? emitted_ : preface_source_.begin; }
  // Where the bytes of the last feed begin, behind those of a character that an earlier one left unfinished.
  uint64_t piece_begin() const { return piece_begin_; }

 private:
  enum class Stage : uint8_t {
    kReasoning,
    kContent,
    kJsonSearch,
    kJson,
    kAfterJson,
    kToolCalls,
    kToolName,
    kArguments,
    kParameterName,
    kParameterType,
    kStringValue,
    kRawValue,
    kUntypedValue,
    kFinished,
  };
  static constexpr int kStages = 14;
  struct StagePatterns;

  static std::shared_ptr<const StagePatterns> make_patterns(Stage stage, const ParserOptions& options);
  void enter(Stage stage, bool lead = false);
  void break_off_character();
  void consume(std::string_view text);
  void drop_leading_newlines(std::string_view text, size_t* pos);
  void on_match(int pattern, uint64_t match_end);
  void emit_until(uint64_t end, std::string_view text, uint64_t text_begin);
  void hold_rest(std::string_view text, uint64_t text_begin);
  void output(std::string_view piece, uint64_t begin);
  std::string_view expand_markers(std::string_view piece);
  void arguments(std::string_view json);
  void escaped_arguments(std::string_view text);
  void open_parameter();
  void close_key();
  void close_call(bool complete);
  void close_raw_value();
  void close_untyped_value(bool complete);

  OutputSink* sink_;
  const bool markers_;
  const bool json_mode_;
  const bool newline_stops_;  // "\n" itself is a stop sequence
  std::vector<std::string> stops_;
  std::shared_ptr<const StagePatterns> patterns_[kStages];

  Utf8Gate gate_;
  Stage stage_ = Stage::kFinished;
  bool lead_ = false;  // no byte of the stage seen yet: newlines are dropped
  PatternSet::State state_;
  uint64_t position_ = 0, piece_begin_ = 0;
  uint64_t emitted_ = 0;  // everything before has been output or dropped
  std::string held_;      // [emitted_, position_) is held_[held_begin_..]
  size_t held_begin_ = 0;
  uint64_t last_marker_end_ = 0;  // no marker behind this position
  std::string expanded_, escaped_;

  int stop_ = -1;
  int calls_ = 0;
  bool call_open_ = false;
  int parameters_ = 0;       // of the open call
  bool value_blank_ = true;  // the raw value has only white space so far
  std::string name_, untyped_;
  std::string preface_;  // JSON mode: text before any JSON
  SourceRange preface_source_;
};

}  // namespace deepinfer::recipe
