#include "grammar/json_validate.h"

#include <algorithm>
#include <optional>

#include "grammar/json_format.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

TypeBit type_of(const JsonValue& value) {
  switch (value.kind()) {
    case JsonKind::kNull: return kNull;
    case JsonKind::kTrue:
    case JsonKind::kFalse: return kBoolean;
    case JsonKind::kNumber: return Decimal::parse(value.text())->is_integer() ? kInteger : kFraction;
    case JsonKind::kString: return kString;
    case JsonKind::kArray: return kArray;
    case JsonKind::kObject: return kObject;
  }
  return kNull;
}

bool has_duplicates(const JsonValue& array) {
  std::vector<std::pair<uint64_t, uint32_t>> hashes;
  for (uint32_t i = 0; i < array.size(); ++i) hashes.emplace_back(json_hash(array[i]), i);
  std::sort(hashes.begin(), hashes.end());
  for (size_t i = 0; i < hashes.size(); ++i) {
    for (size_t k = i + 1; k < hashes.size() && hashes[k].first == hashes[i].first; ++k) {
      if (json_equal(array[hashes[i].second], array[hashes[k].second])) return true;
    }
  }
  return false;
}

}  // namespace

std::string JsonError::to_string() const {
  return "\"" + instance_path + "\": " + message + " (" + schema_path + ")";
}

// Which members and items of one value some keyword has looked at, for unevaluatedProperties and unevaluatedItems.
struct Evaluated {
  std::vector<bool> seen;
  void add(size_t i) {
    if (i < seen.size()) seen[i] = true;
  }
  void add_all() { std::fill(seen.begin(), seen.end(), true); }
  void add(const Evaluated& other) {
    for (size_t i = 0; i < seen.size(); ++i) seen[i] = seen[i] || other.seen[i];
  }
};

class JsonEvaluation {
 public:
  JsonEvaluation(JsonValidator& validator, std::vector<JsonError>* errors, size_t errors_max)
      : validator_(validator),
        model_(*validator.model_),
        errors_(errors),
        errors_max_(errors_max),
        track_(model_.uses_unevaluated()) {}

  struct Place {
    const Place* parent;
    std::string_view name;
    int64_t index;
  };

  bool check(SchemaId id, const JsonValue& value, const Place* place, Evaluated* out) {
    const SchemaNode& node = model_.node(id);
    if (node.trivial()) return true;
    const Depth depth(depth_);
    if (depth_ > kDepthMax) {
      validator_.builder_.fail(make_error(Code::kResourceExhausted,
                                          "the document and its schema are nested too deeply to be checked together"));
      return false;
    }
    if (node.never) return fail(id, "", place, "no value is allowed here");
    Evaluated own;
    bool container = value.is_array() || value.is_object();
    if (track_ && container) own.seen.resize(value.size());
    bool good = check_any_type(id, node, value, place);
    if (!go_on(good)) return false;
    if (value.is_number()) {
      good &= check_number(id, node, value, place);
    } else if (value.is_string()) {
      good &= check_string(id, node, value, place);
    } else if (value.is_array()) {
      good &= check_array(id, node, value, place, own);
    } else if (value.is_object()) {
      good &= check_object(id, node, value, place, own);
    }
    if (go_on(good) && node.applicators) good &= check_applicators(id, *node.applicators, value, place, own);
    if (go_on(good) && track_) good &= check_unevaluated(id, node, value, place, own);
    if (good && out && container) out->add(own);
    return good;
  }

 private:
  // After a failure evaluation goes on only to collect more messages.
  bool go_on(bool good) const { return good || (errors_ && errors_->size() < errors_max_); }

  bool fail(SchemaId id, std::string_view keyword, const Place* place, std::string message) {
    if (!errors_ || errors_->size() >= errors_max_) return false;
    JsonError e;
    std::vector<const Place*> chain;
    for (; place; place = place->parent) chain.push_back(place);
    for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
      append_pointer((*it)->index < 0 ? (*it)->name : std::string_view(std::to_string((*it)->index)), e.instance_path);
    }
    e.schema_path = model_.path(id);
    if (!keyword.empty()) append_pointer(keyword, e.schema_path);
    e.message = std::move(message);
    errors_->push_back(std::move(e));
    return false;
  }

  // A sub-evaluation whose failure is no error by itself.
  bool quiet(SchemaId id, const JsonValue& value, const Place* place, Evaluated* out) {
    auto* errors = std::exchange(errors_, nullptr);
    bool good = check(id, value, place, out);
    errors_ = errors;
    return good;
  }

  bool check_any_type(SchemaId id, const SchemaNode& node, const JsonValue& value, const Place* place) {
    bool good = true;
    if (!(node.types & type_of(value))) good = fail(id, "type", place, "the value has another type");
    if (node.constant && !json_equal(*node.constant, value))
      good = fail(id, "const", place, "the value is another one");
    if (node.choices && !validator_.is_listed(*node.choices, value))
      good = fail(id, "enum", place, "the value is none of those listed");
    return good;
  }

  bool check_number(SchemaId id, const SchemaNode& node, const JsonValue& value, const Place* place) {
    if (!node.number) return true;
    const NumberKeywords& k = *node.number;
    Decimal v = *Decimal::parse(value.text());
    bool good = true;
    if (k.minimum && v < *k.minimum) good = fail(id, "minimum", place, "the number is too small");
    if (k.maximum && *k.maximum < v) good = fail(id, "maximum", place, "the number is too large");
    if (k.exclusive_minimum && v.compare(*k.exclusive_minimum) <= 0)
      good = fail(id, "exclusiveMinimum", place, "the number is too small");
    if (k.exclusive_maximum && v.compare(*k.exclusive_maximum) >= 0)
      good = fail(id, "exclusiveMaximum", place, "the number is too large");
    if (k.multiple_of && !v.is_multiple_of(*k.multiple_of))
      good = fail(id, "multipleOf", place, "the number is not a multiple");
    return good;
  }

  bool check_string(SchemaId id, const SchemaNode& node, const JsonValue& value, const Place* place) {
    if (!node.string) return true;
    const StringKeywords& k = *node.string;
    bool good = true;
    if (k.min_length || k.max_length) {
      auto length = static_cast<int64_t>(count_code_points(value.text()));
      if (k.min_length && length < *k.min_length) good = fail(id, "minLength", place, "the string is too short");
      if (k.max_length && length > *k.max_length) good = fail(id, "maxLength", place, "the string is too long");
    }
    if (k.pattern && !matches(*k.pattern, value.text())) good = fail(id, "pattern", place, "the string does not match");
    if (k.format && !check_format(*k.format, value.text())) {
      good = fail(id, "format", place, "the string is not of format " + std::string(*k.format));
    }
    return good;
  }

  bool matches(std::string_view pattern, std::string_view text) {
    auto regex = validator_.pattern(pattern);
    return regex.ok() && validator_.builder_.contains(regex.value(), text);
  }

  bool check_array(SchemaId id, const SchemaNode& node, const JsonValue& value, const Place* place, Evaluated& own) {
    if (!node.array) return true;
    const ArrayKeywords& k = *node.array;
    auto size = static_cast<int64_t>(value.size());
    bool good = true;
    if (k.min_items && size < *k.min_items) good = fail(id, "minItems", place, "the array has too few items");
    if (k.max_items && size > *k.max_items) good = fail(id, "maxItems", place, "the array has too many items");
    if (k.unique && has_duplicates(value)) good = fail(id, "uniqueItems", place, "the array has equal items");
    for (uint32_t i = 0; i < value.size() && go_on(good); ++i) {
      SchemaId sub = i < k.prefix.size() ? k.prefix[i] : k.rest;
      if (sub == kNoNode) break;
      Place here{place, {}, i};
      good &= check(sub, value[i], &here, nullptr);
      own.add(i);
    }
    if (k.contains != kNoNode && go_on(good)) {
      int64_t n = 0;
      for (uint32_t i = 0; i < value.size(); ++i) {
        Place here{place, {}, i};
        if (!quiet(k.contains, value[i], &here, nullptr)) continue;
        ++n;
        own.add(i);
      }
      if (n < k.min_contains)
        good = fail(id, "contains", place, "too few items are of the kind that must be contained");
      if (k.max_contains && n > *k.max_contains)
        good = fail(id, "maxContains", place, "too many items are of the kind that may be contained");
    }
    return good;
  }

  bool check_object(SchemaId id, const SchemaNode& node, const JsonValue& value, const Place* place, Evaluated& own) {
    if (!node.object) return true;
    const ObjectKeywords& k = *node.object;
    auto size = static_cast<int64_t>(value.size());
    bool good = true;
    if (k.min_properties && size < *k.min_properties)
      good = fail(id, "minProperties", place, "the object has too few members");
    if (k.max_properties && size > *k.max_properties)
      good = fail(id, "maxProperties", place, "the object has too many members");
    for (std::string_view name : k.required) {
      if (!value.find(name)) good = fail(id, "required", place, "the member \"" + std::string(name) + "\" is missing");
    }
    for (uint32_t i = 0; i < value.size() && go_on(good); ++i)
      good &= check_member(k, id, value.members()[i], i, place, own);
    for (const NameList& d : k.dependent_required) {
      if (!value.find(d.name)) continue;
      for (std::string_view name : d.names) {
        if (!value.find(name))
          good = fail(id, "dependentRequired", place, "the member \"" + std::string(name) + "\" is missing");
      }
    }
    for (const NamedNode& d : k.dependent_schemas) {
      if (go_on(good) && value.find(d.name)) good &= check(d.node, value, place, &own);
    }
    return good;
  }

  bool check_member(const ObjectKeywords& k, SchemaId id, const JsonMember& member, uint32_t index, const Place* place,
                    Evaluated& own) {
    Place here{place, member.name, -1};
    bool good = true, known = false;
    for (const NamedNode& p : k.properties) {
      if (p.name != member.name) continue;
      known = true;
      good &= check(p.node, member.value, &here, nullptr);
      break;
    }
    for (const NamedNode& p : k.patterns) {
      if (!matches(p.name, member.name)) continue;
      known = true;
      good &= check(p.node, member.value, &here, nullptr);
    }
    if (!known && k.additional != kNoNode) {
      known = true;
      if (model_.node(k.additional).never) {
        good = fail(id, "additionalProperties", &here, "the member is not allowed");
      } else {
        good &= check(k.additional, member.value, &here, nullptr);
      }
    }
    if (known) own.add(index);
    if (k.names != kNoNode) {
      good &= check(k.names, JsonValue::of_text(JsonKind::kString, member.name), &here, nullptr);
    }
    return good;
  }

  bool check_applicators(SchemaId id, const Applicators& a, const JsonValue& value, const Place* place,
                         Evaluated& own) {
    bool good = true;
    if (a.ref != kNoNode) good &= check(a.ref, value, place, &own);
    for (SchemaId sub : a.all_of) {
      if (go_on(good)) good &= check(sub, value, place, &own);
    }
    if (!a.any_of.empty() && go_on(good)) {
      bool any = false;
      for (SchemaId sub : a.any_of) {
        if (!any || track_) any |= quiet(sub, value, place, &own);
      }
      if (!any) good = fail(id, "anyOf", place, "the value fits none of the alternatives");
    }
    if (!a.one_of.empty() && go_on(good)) {
      int n = 0;
      for (SchemaId sub : a.one_of) {
        if (n < 2) n += quiet(sub, value, place, &own);
      }
      if (n != 1)
        good = fail(id, "oneOf", place,
                    n ? "the value fits more than one of the alternatives" : "the value fits none of the alternatives");
    }
    if (a.negated != kNoNode && go_on(good) && quiet(a.negated, value, place, nullptr)) {
      good = fail(id, "not", place, "the value is of a kind that is not allowed");
    }
    if (a.condition != kNoNode && go_on(good)) {
      SchemaId then = quiet(a.condition, value, place, &own) ? a.consequence : a.alternative;
      if (then != kNoNode) good &= check(then, value, place, &own);
    }
    return good;
  }

  bool check_unevaluated(SchemaId id, const SchemaNode& node, const JsonValue& value, const Place* place,
                         Evaluated& own) {
    SchemaId sub = kNoNode;
    if (value.is_array() && node.array) sub = node.array->unevaluated;
    if (value.is_object() && node.object) sub = node.object->unevaluated;
    if (sub == kNoNode) return true;
    bool good = true;
    for (uint32_t i = 0; i < value.size() && go_on(good); ++i) {
      if (own.seen[i]) continue;
      Place here{place, value.is_object() ? value.members()[i].name : std::string_view(),
                 value.is_object() ? -1 : static_cast<int64_t>(i)};
      if (!quiet(sub, value.is_object() ? value.members()[i].value : value[i], &here, nullptr)) {
        good = fail(id, value.is_object() ? "unevaluatedProperties" : "unevaluatedItems", &here,
                    "the value is not allowed");
      }
    }
    own.add_all();
    return good;
  }

  // Levels of the document times subschemas in place, bounded so that the call stack is.
  static constexpr int kDepthMax = 2'500;
  struct Depth {
    explicit Depth(int& depth) : depth_(depth) { ++depth_; }
    ~Depth() { --depth_; }
    int& depth_;
  };

  JsonValidator& validator_;
  const SchemaModel& model_;
  int depth_ = 0;
  std::vector<JsonError>* errors_;
  size_t errors_max_;
  bool track_;
};

JsonValidator::JsonValidator(std::shared_ptr<const SchemaModel> model, const Limits& limits)
    : model_(std::move(model)), builder_([&] {
        Limits l = limits;
        l.compile_ms = 0;  // a validator lives longer than one compile
        return l;
      }()) {}

Result<Text> JsonValidator::pattern(std::string_view source) {
  auto it = patterns_.find(source);
  if (it != patterns_.end()) return it->second;
  DI_ASSIGN_OR_RETURN(Text text, parse_regex(builder_, source, RegexMode::kSearch));
  patterns_.emplace(source, text);
  return text;
}

bool JsonValidator::is_listed(const JsonValue& choices, const JsonValue& value) {
  constexpr uint32_t kShort = 16;
  if (choices.size() <= kShort) {
    return std::any_of(choices.items(), choices.items() + choices.size(),
                       [&](const JsonValue& v) { return json_equal(v, value); });
  }
  auto [index, fresh] = listed_.try_emplace(&choices);
  if (fresh) {
    for (uint32_t i = 0; i < choices.size(); ++i) index->second.emplace(json_hash(choices[i]), &choices[i]);
  }
  auto [from, to] = index->second.equal_range(json_hash(value));
  return std::any_of(from, to, [&](const auto& entry) { return json_equal(*entry.second, value); });
}

Status JsonValidator::prepare() {
  for (SchemaId id = 0; id < static_cast<SchemaId>(model_->size()); ++id) {
    const SchemaNode& node = model_->node(id);
    auto compile = [&](std::string_view keyword, std::string_view source) {
      auto regex = pattern(source);
      if (regex.ok()) return Status();
      return regex.status().with_context("JSON Schema keyword \"" + std::string(keyword) + "\" at " + model_->path(id));
    };
    if (node.string && node.string->pattern) DI_RETURN_IF_ERROR(compile("pattern", *node.string->pattern));
    if (!node.object) continue;
    for (const NamedNode& p : node.object->patterns) DI_RETURN_IF_ERROR(compile("patternProperties", p.name));
  }
  return {};
}

bool JsonValidator::is_valid(SchemaId node, const JsonValue& instance) {
  return JsonEvaluation(*this, nullptr, 0).check(node, instance, nullptr, nullptr);
}

std::vector<JsonError> JsonValidator::validate(const JsonValue& instance, size_t errors_max) {
  std::vector<JsonError> errors;
  const bool good = JsonEvaluation(*this, &errors, errors_max).check(model_->root(), instance, nullptr, nullptr);
  if (!good && errors.empty()) errors.push_back({"", "#", status().message()});
  return errors;
}

}  // namespace deepinfer::grammar
