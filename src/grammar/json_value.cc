#include "grammar/json_value.h"

#include <algorithm>
#include <cstring>
#include <memory_resource>
#include <vector>

#include "grammar/json_number.h"

namespace deepinfer::grammar {

struct JsonDocument::Arena {
  std::pmr::monotonic_buffer_resource memory{4096};
};

JsonDocument::JsonDocument() : arena_(std::make_unique<Arena>()) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

const JsonValue* JsonValue::find(std::string_view name) const {
  if (kind_ != JsonKind::kObject) return nullptr;
  for (uint32_t i = 0; i < size_; ++i) {
    if (members_[i].name == name) return &members_[i].value;
  }
  return nullptr;
}

JsonValue JsonValue::of_text(JsonKind kind, std::string_view text) {
  JsonValue v = of_kind(kind);
  v.text_ = text.data();
  v.size_ = static_cast<uint32_t>(text.size());
  return v;
}

JsonValue JsonValue::of_items(const JsonValue* items, uint32_t n) {
  JsonValue v = of_kind(JsonKind::kArray);
  v.items_ = items;
  v.size_ = n;
  return v;
}

JsonValue JsonValue::of_members(const JsonMember* members, uint32_t n) {
  JsonValue v = of_kind(JsonKind::kObject);
  v.members_ = members;
  v.size_ = n;
  return v;
}

// One pass with an explicit stack of open containers, so that depth costs heap and not call frames. Children are
// collected in two stacks and copied to the arena when their container closes.
class JsonParser {
 public:
  JsonParser(std::string_view text, const JsonLimits& limits) : limits_(limits) {
    // The text is copied once: plain strings and numbers are views into the copy.
    char* copy = static_cast<char*>(doc_.arena_->memory.allocate(text.size() + 1, 1));
    if (!text.empty()) std::memcpy(copy, text.data(), text.size());
    copy[text.size()] = '\0';
    begin_ = p_ = copy;
    end_ = copy + text.size();
  }

  Result<JsonDocument> run() {
    JsonValue value;
    for (;;) {
      // A value starts here.
      skip_space();
      if (p_ == end_) return fail("the text ends where a value should start");
      bool open = false;
      if (*p_ == '{' || *p_ == '[') {
        if (static_cast<int>(frames_.size()) >= limits_.depth_max) {
          return make_error(Code::kResourceExhausted,
                            "JSON is nested more than {} levels deep (at byte {}); flatten it", limits_.depth_max,
                            p_ - begin_);
        }
        bool object = *p_++ == '{';
        frames_.push_back({object, static_cast<uint32_t>(items_.size()), static_cast<uint32_t>(members_.size())});
        skip_space();
        if (p_ != end_ && *p_ == (object ? '}' : ']')) {
          ++p_;
          DI_RETURN_IF_ERROR(close(value));
        } else {
          open = true;
          if (object) DI_RETURN_IF_ERROR(name());
        }
      } else {
        DI_RETURN_IF_ERROR(scalar(value));
      }
      if (open) continue;
      // A value is complete: hand it to its container, and close as many containers as end here.
      for (;;) {
        if (frames_.empty()) {
          skip_space();
          if (p_ != end_) return fail("text follows the end of the value");
          doc_.root_ = value;
          return std::move(doc_);
        }
        bool object = frames_.back().object;
        if (object) {
          members_.back().value = value;
        } else {
          items_.push_back(value);
        }
        skip_space();
        if (p_ == end_) return fail("an array or object is not closed");
        if (*p_ == ',') {
          ++p_;
          if (object) {
            skip_space();
            DI_RETURN_IF_ERROR(name());
          }
          break;
        }
        if (*p_ != (object ? '}' : ']')) return fail(object ? "expected ',' or '}'" : "expected ',' or ']'");
        ++p_;
        DI_RETURN_IF_ERROR(close(value));
      }
    }
  }

 private:
  struct Frame {
    bool object;
    uint32_t items, members;
  };

  Status fail(std::string_view what) const {
    return make_error(Code::kInvalidArgument, "not valid JSON at byte {}: {}", p_ - begin_, what);
  }

  void skip_space() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
  }

  Status name() {
    if (p_ == end_ || *p_ != '"') return fail("expected a member name in double quotes");
    std::string_view text;
    DI_RETURN_IF_ERROR(string(text));
    skip_space();
    if (p_ == end_ || *p_ != ':') return fail("expected ':' after a member name");
    ++p_;
    members_.push_back({text, JsonValue()});
    return {};
  }

  Status close(JsonValue& value) {
    Frame frame = frames_.back();
    frames_.pop_back();
    if (frame.object) {
      uint32_t n = static_cast<uint32_t>(members_.size()) - frame.members;
      const JsonMember* from = members_.data() + frame.members;
      DI_RETURN_IF_ERROR(check_names(from, n));
      value = JsonValue::of_members(copy(from, n), n);
      members_.resize(frame.members);
    } else {
      uint32_t n = static_cast<uint32_t>(items_.size()) - frame.items;
      value = JsonValue::of_items(copy(items_.data() + frame.items, n), n);
      items_.resize(frame.items);
    }
    return {};
  }

  template <class T>
  const T* copy(const T* from, uint32_t n) {
    if (n == 0) return nullptr;
    T* to = static_cast<T*>(doc_.arena_->memory.allocate(n * sizeof(T), alignof(T)));
    std::uninitialized_copy(from, from + n, to);
    return to;
  }

  Status check_names(const JsonMember* members, uint32_t n) {
    const std::string_view* twice = nullptr;
    if (n <= 12) {
      for (uint32_t i = 1; i < n && !twice; ++i) {
        for (uint32_t k = 0; k < i; ++k) {
          if (members[i].name == members[k].name) twice = &members[i].name;
        }
      }
    } else {
      names_.clear();
      for (uint32_t i = 0; i < n; ++i) names_.push_back(members[i].name);
      std::sort(names_.begin(), names_.end());
      auto it = std::adjacent_find(names_.begin(), names_.end());
      if (it != names_.end()) twice = &*it;
    }
    if (!twice) return {};
    return make_error(Code::kInvalidArgument,
                      "not valid JSON before byte {}: the member name \"{}\" occurs twice in one object", p_ - begin_,
                      *twice);
  }

  Status scalar(JsonValue& value) {
    if (*p_ == '"') {
      std::string_view text;
      DI_RETURN_IF_ERROR(string(text));
      value = JsonValue::of_text(JsonKind::kString, text);
      return {};
    }
    if (*p_ == '-' || (*p_ >= '0' && *p_ <= '9')) return number(value);
    for (auto [word, kind] : {std::pair<std::string_view, JsonKind>{"null", JsonKind::kNull},
                              {"true", JsonKind::kTrue},
                              {"false", JsonKind::kFalse}}) {
      if (std::string_view(p_, static_cast<size_t>(end_ - p_)).starts_with(word)) {
        p_ += word.size();
        value = JsonValue::of_kind(kind);
        return {};
      }
    }
    return fail("expected a value");
  }

  bool digits() {
    const char* from = p_;
    while (p_ != end_ && *p_ >= '0' && *p_ <= '9') ++p_;
    return p_ != from;
  }

  Status number(JsonValue& value) {
    const char* from = p_;
    if (*p_ == '-') ++p_;
    if (p_ != end_ && *p_ == '0') {
      ++p_;
    } else if (!digits()) {
      return fail("a number needs a digit after '-'");
    }
    if (p_ != end_ && *p_ == '.') {
      ++p_;
      if (!digits()) return fail("a number needs a digit after '.'");
    }
    if (p_ != end_ && (*p_ == 'e' || *p_ == 'E')) {
      ++p_;
      if (p_ != end_ && (*p_ == '+' || *p_ == '-')) ++p_;
      if (!digits()) return fail("a number needs a digit in its exponent");
    }
    value = JsonValue::of_text(JsonKind::kNumber, {from, static_cast<size_t>(p_ - from)});
    return {};
  }

  Status string(std::string_view& out) {
    const char* from = ++p_;
    while (p_ != end_ && *p_ != '"' && *p_ != '\\' && static_cast<uint8_t>(*p_) >= 0x20 &&
           static_cast<uint8_t>(*p_) < 0x80)
      ++p_;
    if (p_ != end_ && *p_ == '"') {
      out = {from, static_cast<size_t>(p_ - from)};
      ++p_;
      return {};
    }
    // Decoding never lengthens a string, so that it can be done in place in the copy.
    char* to = const_cast<char*>(p_);
    while (p_ != end_ && *p_ != '"') {
      uint8_t c = static_cast<uint8_t>(*p_);
      if (c < 0x20) return fail("a control character in a string must be written as an escape");
      if (c == '\\') {
        DI_RETURN_IF_ERROR(escape(to));
      } else if (c < 0x80) {
        *to++ = *p_++;
      } else {
        size_t n = utf8_length();
        if (n == 0) return fail("a string is not valid UTF-8");
        for (; n; --n) *to++ = *p_++;
      }
    }
    if (p_ == end_) return fail("a string is not closed");
    ++p_;
    out = {from, static_cast<size_t>(to - from)};
    return {};
  }

  // Length of the well-formed UTF-8 sequence at p_, 0 if there is none.
  size_t utf8_length() const {
    auto at = [&](size_t i) -> uint8_t { return p_ + i < end_ ? static_cast<uint8_t>(p_[i]) : 0; };
    auto tail = [&](size_t i) { return (at(i) & 0xC0) == 0x80; };
    uint8_t c = at(0);
    if (c >= 0xC2 && c <= 0xDF) return tail(1) ? 2 : 0;
    if (c >= 0xE0 && c <= 0xEF) {
      if (!tail(1) || !tail(2) || (c == 0xE0 && at(1) < 0xA0) || (c == 0xED && at(1) > 0x9F)) return 0;
      return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
      if (!tail(1) || !tail(2) || !tail(3) || (c == 0xF0 && at(1) < 0x90) || (c == 0xF4 && at(1) > 0x8F)) return 0;
      return 4;
    }
    return 0;
  }

  // Four hexadecimal digits at p_, or -1.
  int hex4() {
    if (end_ - p_ < 4) return -1;
    int v = 0;
    for (int i = 0; i < 4; ++i) {
      char c = p_[i];
      int d = c >= '0' && c <= '9'   ? c - '0'
              : c >= 'a' && c <= 'f' ? c - 'a' + 10
              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                     : -1;
      if (d < 0) return -1;
      v = v * 16 + d;
    }
    p_ += 4;
    return v;
  }

  Status escape(char*& to) {
    ++p_;
    if (p_ == end_) return fail("a string is not closed");
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    char c = *p_++;
    if (size_t i = kFrom.find(c); i != std::string_view::npos) {
      *to++ = kTo[i];
      return {};
    }
    if (c != 'u') return fail("unknown escape in a string");
    int unit = hex4();
    if (unit < 0) return fail("\\u needs four hexadecimal digits");
    uint32_t cp = static_cast<uint32_t>(unit);
    if (cp >= 0xD800 && cp <= 0xDFFF) {
      int low = -1;
      if (cp < 0xDC00 && end_ - p_ >= 2 && p_[0] == '\\' && p_[1] == 'u') {
        p_ += 2;
        low = hex4();
      }
      if (low < 0xDC00 || low > 0xDFFF) return fail("a surrogate escape without its other half");
      cp = 0x10000 + ((cp - 0xD800) << 10) + (static_cast<uint32_t>(low) - 0xDC00);
    }
    auto put = [&](uint32_t byte) { *to++ = static_cast<char>(byte); };
    if (cp < 0x80) {
      put(cp);
    } else if (cp < 0x800) {
      put(0xC0 | cp >> 6), put(0x80 | (cp & 63));
    } else if (cp < 0x10000) {
      put(0xE0 | cp >> 12), put(0x80 | (cp >> 6 & 63)), put(0x80 | (cp & 63));
    } else {
      put(0xF0 | cp >> 18), put(0x80 | (cp >> 12 & 63)), put(0x80 | (cp >> 6 & 63)), put(0x80 | (cp & 63));
    }
    return {};
  }

  const JsonLimits& limits_;
  JsonDocument doc_;
  const char* begin_;
  const char* p_;
  const char* end_;
  std::vector<Frame> frames_;
  std::vector<JsonValue> items_;
  std::vector<JsonMember> members_;
  std::vector<std::string_view> names_;
};

Result<JsonDocument> JsonDocument::parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes_max) {
    return make_error(Code::kResourceExhausted, "the JSON text has {} bytes; the limit is {}", text.size(),
                      limits.bytes_max);
  }
  return JsonParser(text, limits).run();
}

namespace {

std::vector<const JsonMember*> by_name(const JsonValue& object) {
  std::vector<const JsonMember*> out;
  for (uint32_t i = 0; i < object.size(); ++i) out.push_back(&object.members()[i]);
  std::sort(out.begin(), out.end(), [](auto* a, auto* b) { return a->name < b->name; });
  return out;
}

uint64_t mix(uint64_t h, uint64_t v) { return (h ^ v) * 0x9E3779B97F4A7C15ull + (h >> 29); }

uint64_t hash_text(std::string_view s) {
  uint64_t h = s.size();
  for (char c : s) h = mix(h, static_cast<uint8_t>(c));
  return h;
}

}  // namespace

bool json_equal(const JsonValue& a, const JsonValue& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case JsonKind::kNumber:
      return a.text() == b.text() || *Decimal::parse(a.text()) == *Decimal::parse(b.text());
    case JsonKind::kString:
      return a.text() == b.text();
    case JsonKind::kArray:
      return a.size() == b.size() && std::equal(a.items(), a.items() + a.size(), b.items(), json_equal);
    case JsonKind::kObject: {
      if (a.size() != b.size()) return false;
      auto x = by_name(a), y = by_name(b);
      for (size_t i = 0; i < x.size(); ++i) {
        if (x[i]->name != y[i]->name || !json_equal(x[i]->value, y[i]->value)) return false;
      }
      return true;
    }
    default:
      return true;
  }
}

uint64_t json_hash(const JsonValue& value) {
  uint64_t h = static_cast<uint64_t>(value.kind()) + 1;
  switch (value.kind()) {
    case JsonKind::kNumber: {
      Decimal d = *Decimal::parse(value.text());
      return mix(mix(h, hash_text(d.digits())), static_cast<uint64_t>(d.exponent()) * 2 + d.negative());
    }
    case JsonKind::kString:
      return mix(h, hash_text(value.text()));
    case JsonKind::kArray:
      for (uint32_t i = 0; i < value.size(); ++i) h = mix(h, json_hash(value[i]));
      return h;
    case JsonKind::kObject: {
      uint64_t sum = 0;
      for (uint32_t i = 0; i < value.size(); ++i)
        sum += mix(hash_text(value.members()[i].name), json_hash(value.members()[i].value));
      return mix(h, sum);
    }
    default:
      return h;
  }
}

void append_json_string(std::string_view text, std::string& out) {
  out += '"';
  for (char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          static constexpr char kHex[] = "0123456789abcdef";
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void append_json(const JsonValue& value, std::string& out) {
  switch (value.kind()) {
    case JsonKind::kNull: out += "null"; return;
    case JsonKind::kTrue: out += "true"; return;
    case JsonKind::kFalse: out += "false"; return;
    case JsonKind::kNumber: out += value.text(); return;
    case JsonKind::kString: append_json_string(value.text(), out); return;
    case JsonKind::kArray:
      out += '[';
      for (uint32_t i = 0; i < value.size(); ++i) {
        if (i) out += ',';
        append_json(value[i], out);
      }
      out += ']';
      return;
    case JsonKind::kObject:
      out += '{';
      for (uint32_t i = 0; i < value.size(); ++i) {
        if (i) out += ',';
        append_json_string(value.members()[i].name, out);
        out += ':';
        append_json(value.members()[i].value, out);
      }
      out += '}';
      return;
  }
}

size_t count_code_points(std::string_view utf8) {
  size_t n = 0;
  for (char c : utf8) n += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return n;
}

}  // namespace deepinfer::grammar
