#include "grammar/json_schema_reader.h"

#include <algorithm>
#include <array>

#include "grammar/json_format.h"

namespace deepinfer::grammar {
namespace {

std::string pointer_of(std::string_view keyword) {
  std::string out;
  append_pointer(keyword, out);
  return out;
}

std::string pointer_of(std::string_view keyword, std::string_view token) {
  std::string out = pointer_of(keyword);
  append_pointer(token, out);
  return out;
}

bool is_any_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string_view SchemaReader::meta_schema(const JsonValue& root) {
  const JsonValue* meta = root.find("$schema");
  return meta && meta->is_string() ? meta->text() : std::string_view();
}

SchemaReader::SchemaReader(SchemaModel& model, const JsonValue& root, const SchemaLimits& limits)
    : model_(model),
      root_(root),
      limits_(limits),
      draft4_(is_draft4(meta_schema(root))),
      draft7_(is_draft7(meta_schema(root))),
      named_2020_(meta_schema(root).find("draft/2020-12") != std::string_view::npos),
      resolver_(root, draft4_, draft7_) {}

Status SchemaReader::bad(SchemaId id, std::string_view name, std::string_view what, Code code) const {
  return make_error(code, "JSON Schema keyword \"{}\" at {}{}: {}", name, model_.path(id), pointer_of(name), what);
}

NumberKeywords& SchemaReader::number(SchemaId id) {
  if (!node(id).number) node(id).number = std::make_unique<NumberKeywords>();
  return *node(id).number;
}
StringKeywords& SchemaReader::string(SchemaId id) {
  if (!node(id).string) node(id).string = std::make_unique<StringKeywords>();
  return *node(id).string;
}
ArrayKeywords& SchemaReader::array(SchemaId id) {
  if (!node(id).array) node(id).array = std::make_unique<ArrayKeywords>();
  return *node(id).array;
}
ObjectKeywords& SchemaReader::object(SchemaId id) {
  if (!node(id).object) node(id).object = std::make_unique<ObjectKeywords>();
  return *node(id).object;
}
Applicators& SchemaReader::applicators(SchemaId id) {
  if (!node(id).applicators) node(id).applicators = std::make_unique<Applicators>();
  return *node(id).applicators;
}

Status SchemaReader::run() {
  DI_RETURN_IF_ERROR(read(root_, kNoNode, "", &root_).status());
  DI_RETURN_IF_ERROR(resolve_references());
  return refuse_cycles();
}

Result<SchemaId> SchemaReader::read(const JsonValue& value, SchemaId parent, std::string step,
                                    const JsonValue* resource) {
  auto [slot, fresh] = node_of_.try_emplace(&value, static_cast<SchemaId>(model_.nodes_.size()));
  if (!fresh) return slot->second;
  SchemaId id = slot->second;
  if (limits_.budget != nullptr) DI_RETURN_IF_ERROR(limits_.budget->spend(1));
  if (model_.nodes_.size() >= limits_.nodes_max) {
    return make_error(Code::kResourceExhausted, "the JSON Schema has more than {} subschemas; split it",
                      limits_.nodes_max);
  }
  SchemaNode& n = model_.nodes_.emplace_back();
  n.source = &value;
  n.parent = parent;
  n.step = std::move(step);
  n.resource = resource;
  if (value.is_bool()) {
    n.never = !value.is_true();
    return id;
  }
  if (!value.is_object()) {
    return make_error(Code::kInvalidArgument, "JSON Schema at {}: a schema must be an object, true or false",
                      model_.path(id));
  }
  if (resolver_.starts_resource(value)) n.resource = &value;
  DI_RETURN_IF_ERROR(read_keywords(id));
  return id;
}

Status SchemaReader::read_keywords(SchemaId id) {
  const JsonValue& source = *node(id).source;
  if (draft7_) {
    if (const JsonValue* ref = source.find("$ref")) {
      bool handled = false;
      return read_applicator(id, "$ref", *ref, handled);
    }
  }
  for (uint32_t i = 0; i < source.size(); ++i) {
    const JsonMember& member = source.members()[i];
    bool handled = false;
    DI_RETURN_IF_ERROR(read_keyword(id, member.name, member.value, handled));
  }
  return finish_node(id);
}

Status SchemaReader::read_keyword(SchemaId id, std::string_view name, const JsonValue& value, bool& handled) {
  if (is_any_of(name, {"description", "title", "default", "examples", "$comment", "$defs", "definitions"})) return {};
  handled = true;
  if (name == "type") return read_type(id, value);
  if (name == "const") {
    node(id).constant = &value;
    return {};
  }
  if (name == "enum") {
    if (!value.is_array()) return bad(id, name, "must be an array of values");
    node(id).choices = &value;
    return {};
  }
  handled = false;
  for (auto reader : {&SchemaReader::read_object, &SchemaReader::read_string, &SchemaReader::read_array,
                      &SchemaReader::read_number, &SchemaReader::read_applicator}) {
    DI_RETURN_IF_ERROR((this->*reader)(id, name, value, handled));
    if (handled) return {};
  }
  return {};
}

Status SchemaReader::read_type(SchemaId id, const JsonValue& value) {
  static constexpr std::array<std::pair<std::string_view, uint8_t>, 7> kNames{{{"null", kNull},
                                                                              {"boolean", kBoolean},
                                                                              {"integer", kInteger},
                                                                              {"number", kInteger | kFraction},
                                                                              {"string", kString},
                                                                              {"array", kArray},
                                                                              {"object", kObject}}};
  uint8_t types = 0;
  auto add = [&](const JsonValue& name) {
    if (!name.is_string()) return false;
    auto it = std::find_if(kNames.begin(), kNames.end(), [&](auto& entry) { return entry.first == name.text(); });
    if (it == kNames.end()) return false;
    types |= it->second;
    return true;
  };
  bool good = true;
  if (value.is_array()) {
    good = value.size() > 0;
    for (uint32_t i = 0; i < value.size(); ++i) good = good && add(value[i]);
  } else {
    good = add(value);
  }
  if (!good)
    return bad(id, "type", "must be null, boolean, integer, number, string, array or object, or an array of these");
  node(id).types = types;
  return {};
}

Status SchemaReader::read_number(SchemaId id, std::string_view name, const JsonValue& value, bool& handled) {
  handled = true;
  if (name == "minimum") return decimal(id, name, value, number(id).minimum);
  if (name == "maximum") return decimal(id, name, value, number(id).maximum);
  if (name == "exclusiveMinimum" || name == "exclusiveMaximum") {
    if (value.is_bool() && !named_2020_) return {};  // draft 4's form: finish_node
    return decimal(id, name, value,
                   name == "exclusiveMinimum" ? number(id).exclusive_minimum : number(id).exclusive_maximum);
  }
  if (name == "multipleOf") {
    DI_RETURN_IF_ERROR(decimal(id, name, value, number(id).multiple_of));
    const Decimal& m = *number(id).multiple_of;
    if (m.is_zero() || m.negative()) return bad(id, name, "must be greater than 0");
    if (m.digits().size() > Decimal::kDivisorDigitsMax)
      return bad(id, name, "has more than 18 significant digits", Code::kUnsupported);
    return {};
  }
  handled = false;
  return {};
}

Status SchemaReader::read_string(SchemaId id, std::string_view name, const JsonValue& value, bool& handled) {
  handled = true;
  if (name == "minLength") return count(id, name, value, string(id).min_length);
  if (name == "maxLength") return count(id, name, value, string(id).max_length);
  if (name == "pattern" || name == "format") {
    if (!value.is_string()) return bad(id, name, "must be a string");
    if (name == "pattern") {
      string(id).pattern = value.text();
    } else if (is_known_format(value.text())) {
      string(id).format = value.text();
    }
    return {};
  }
  handled = false;
  return {};
}

Status SchemaReader::read_array(SchemaId id, std::string_view name, const JsonValue& value, bool& handled) {
  handled = true;
  if (name == "items") {
    if (!value.is_array()) return child(id, name, value, array(id).rest);
    if (named_2020_) return bad(id, name, "must be a schema; draft 2020-12 writes tuples as prefixItems");
    array(id).prefix_keyword = "items";
    return children(id, name, value, array(id).prefix);
  }
  if (name == "minItems") return count(id, name, value, array(id).min_items);
  if (name == "maxItems") return count(id, name, value, array(id).max_items);
  if (name == "uniqueItems") {
    if (!value.is_bool()) return bad(id, name, "must be true or false");
    if (value.is_true()) array(id).unique = true;
    return {};
  }
  if (name == "contains") return child(id, name, value, array(id).contains);
  if (name == "additionalItems") {
    const JsonValue* items = node(id).source->find("items");
    if (named_2020_ || !items || !items->is_array()) return {};
    array(id).rest_keyword = "additionalItems";
    return child(id, name, value, array(id).rest);
  }
  if (!draft7_) {
    if (name == "prefixItems") return children(id, name, value, array(id).prefix);
    if (name == "minContains") {
      std::optional<int64_t> n;
      DI_RETURN_IF_ERROR(count(id, name, value, n));
      array(id).min_contains = *n;
      return {};
    }
    if (name == "maxContains") return count(id, name, value, array(id).max_contains);
    if (name == "unevaluatedItems") {
      model_.uses_unevaluated_ = true;
      return child(id, name, value, array(id).unevaluated);
    }
  }
  handled = false;
  return {};
}

Status SchemaReader::read_object(SchemaId id, std::string_view name, const JsonValue& value, bool& handled) {
  handled = true;
  if (name == "properties") return named_children(id, name, value, object(id).properties);
  if (name == "required") {
    if (value.is_bool() && !named_2020_) {
      return bad(id, name, "must be an array of names; the boolean form of draft 3 is not supported",
                 Code::kInvalidArgument);
    }
    return names(id, name, value, object(id).required);
  }
  if (name == "additionalProperties") return child(id, name, value, object(id).additional);
  if (name == "patternProperties") return named_children(id, name, value, object(id).patterns);
  if (name == "propertyNames") return child(id, name, value, object(id).names);
  if (name == "minProperties") return count(id, name, value, object(id).min_properties);
  if (name == "maxProperties") return count(id, name, value, object(id).max_properties);
  if (name == "dependencies") return read_dependencies(id, name, value);
  if (!draft7_) {
    if (name == "dependentRequired" || name == "dependentSchemas") return read_dependencies(id, name, value);
    if (name == "unevaluatedProperties") {
      model_.uses_unevaluated_ = true;
      return child(id, name, value, object(id).unevaluated);
    }
  }
  handled = false;
  return {};
}

Status SchemaReader::read_dependencies(SchemaId id, std::string_view name, const JsonValue& value) {
  if (!value.is_object()) return bad(id, name, "must be an object");
  for (uint32_t i = 0; i < value.size(); ++i) {
    const JsonMember& member = value.members()[i];
    bool list = member.value.is_array();
    if (list ? name == "dependentSchemas" : name == "dependentRequired") {
      return bad(id, name, list ? "its members must be schemas" : "its members must be arrays of names");
    }
    if (list) {
      NameList entry{member.name, {}};
      DI_RETURN_IF_ERROR(names(id, name, member.value, entry.names));
      object(id).dependent_required.push_back(std::move(entry));
    } else {
      DI_ASSIGN_OR_RETURN(SchemaId sub, read(member.value, id, pointer_of(name, member.name), node(id).resource));
      object(id).dependent_schemas.push_back({member.name, sub});
    }
  }
  return {};
}

Status SchemaReader::read_applicator(SchemaId id, std::string_view name, const JsonValue& value, bool& handled) {
  handled = true;
  if (name == "$ref" || (!draft7_ && (name == "$dynamicRef" || name == "$recursiveRef"))) {
    if (!value.is_string()) return bad(id, name, "must be a string");
    if (name != "$ref" && resolver_.is_ambiguous(value.text())) {
      return bad(id, name,
                 "where it leads depends on the caller; dynamic references with one anchor only are supported",
                 Code::kUnsupported);
    }
    applicators(id);
    pending_.push_back({id, std::string(name), value.text()});
    return {};
  }
  if (name == "allOf") return children(id, name, value, applicators(id).all_of);
  if (name == "anyOf") return children(id, name, value, applicators(id).any_of);
  if (name == "oneOf") return children(id, name, value, applicators(id).one_of);
  if (name == "not") return child(id, name, value, applicators(id).negated);
  if (name == "if") return child(id, name, value, applicators(id).condition);
  if (name == "then" || name == "else") {
    if (!node(id).source->find("if")) return {};
    return child(id, name, value, name == "then" ? applicators(id).consequence : applicators(id).alternative);
  }
  handled = false;
  return {};
}

// What depends on several keywords of one schema object.
Status SchemaReader::finish_node(SchemaId id) {
  SchemaNode& n = node(id);
  if (n.number && !named_2020_) {
    auto exclusive = [&](const char* name) {
      const JsonValue* v = n.source->find(name);
      return v && v->is_bool() && v->is_true();
    };
    if (exclusive("exclusiveMinimum") && n.number->minimum) n.number->exclusive_minimum = n.number->minimum;
    if (exclusive("exclusiveMaximum") && n.number->maximum) n.number->exclusive_maximum = n.number->maximum;
  }
  return {};
}

Status SchemaReader::child(SchemaId id, std::string_view name, const JsonValue& value, SchemaId& out) {
  // `out` lives in a keyword struct on the heap, so that new nodes do not move it.
  DI_ASSIGN_OR_RETURN(out, read(value, id, pointer_of(name), node(id).resource));
  return {};
}

Status SchemaReader::children(SchemaId id, std::string_view name, const JsonValue& value, std::vector<SchemaId>& out) {
  bool tuple = name == "items" || name == "prefixItems";
  if (!value.is_array() || (value.size() == 0 && !tuple)) return bad(id, name, "must be a non-empty array of schemas");
  out.reserve(value.size());
  for (uint32_t i = 0; i < value.size(); ++i) {
    DI_ASSIGN_OR_RETURN(SchemaId sub, read(value[i], id, pointer_of(name, std::to_string(i)), node(id).resource));
    out.push_back(sub);
  }
  return {};
}

Status SchemaReader::named_children(SchemaId id, std::string_view name, const JsonValue& value,
                                    std::vector<NamedNode>& out) {
  if (!value.is_object()) return bad(id, name, "must be an object of schemas");
  out.reserve(value.size());
  for (uint32_t i = 0; i < value.size(); ++i) {
    const JsonMember& member = value.members()[i];
    DI_ASSIGN_OR_RETURN(SchemaId sub, read(member.value, id, pointer_of(name, member.name), node(id).resource));
    out.push_back({member.name, sub});
  }
  return {};
}

Status SchemaReader::names(SchemaId id, std::string_view name, const JsonValue& value,
                           std::vector<std::string_view>& out) {
  bool good = value.is_array();
  for (uint32_t i = 0; good && i < value.size(); ++i) good = value[i].is_string();
  if (!good) return bad(id, name, "must be an array of names");
  for (uint32_t i = 0; i < value.size(); ++i) {
    if (value.size() > 64 || std::find(out.begin(), out.end(), value[i].text()) == out.end())
      out.push_back(value[i].text());
  }
  return {};
}

Status SchemaReader::count(SchemaId id, std::string_view name, const JsonValue& value, std::optional<int64_t>& out) {
  auto n = value.is_number() ? Decimal::parse(value.text()) : std::nullopt;
  if (!n || n->negative() || !n->is_integer()) return bad(id, name, "must be a non-negative integer");
  out = n->to_int64().value_or(INT64_MAX);
  return {};
}

Status SchemaReader::decimal(SchemaId id, std::string_view name, const JsonValue& value, std::optional<Decimal>& out) {
  if (!value.is_number()) return bad(id, name, "must be a number");
  out = Decimal::parse(value.text());
  if (out->exponent() > 1000 || out->exponent() < -1000 || out->digits().size() > 1000) {
    return bad(id, name, "numbers of more than 1000 digits are not supported", Code::kUnsupported);
  }
  return {};
}

Status SchemaReader::resolve_references() {
  // Reading a target may find more references.
  for (size_t i = 0; i < pending_.size(); ++i) {
    Pending p = pending_[i];
    auto target = resolver_.resolve(p.reference, node(p.from).resource);
    if (!target.ok()) return bad(p.from, p.keyword, target.status().message(), target.status().code());
    auto id = read(*target->value, kNoNode, target->path, target->resource);
    if (!id.ok()) return id.status();
    SchemaId& ref = applicators(p.from).ref;
    if (ref == kNoNode) {
      ref = id.value();
    } else {
      applicators(p.from).all_of.push_back(id.value());  // $ref and $dynamicRef side by side
    }
  }
  return {};
}

// A schema that applies itself to the same value has no meaning; every other walk over the nodes relies on this.
Status SchemaReader::refuse_cycles() const {
  enum Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(model_.nodes_.size(), kNew);
  struct Visit {
    SchemaId id;
    std::vector<SchemaId> next;
  };
  auto in_place = [&](SchemaId id) {
    std::vector<SchemaId> out;
    const SchemaNode& n = model_.node(id);
    if (n.object) {
      for (const NamedNode& d : n.object->dependent_schemas) out.push_back(d.node);
    }
    if (const Applicators* a = n.applicators.get()) {
      for (SchemaId sub : {a->ref, a->negated, a->condition, a->consequence, a->alternative}) {
        if (sub != kNoNode) out.push_back(sub);
      }
      for (const auto* list : {&a->all_of, &a->any_of, &a->one_of}) out.insert(out.end(), list->begin(), list->end());
    }
    return out;
  };
  for (SchemaId start = 0; start < static_cast<SchemaId>(marks.size()); ++start) {
    if (marks[static_cast<size_t>(start)] != kNew) continue;
    std::vector<Visit> stack{{start, in_place(start)}};
    marks[static_cast<size_t>(start)] = kOpen;
    while (!stack.empty()) {
      if (stack.back().next.empty()) {
        marks[static_cast<size_t>(stack.back().id)] = kDone;
        stack.pop_back();
        continue;
      }
      SchemaId next = stack.back().next.back();
      stack.back().next.pop_back();
      Mark& mark = marks[static_cast<size_t>(next)];
      if (mark == kOpen) {
        return make_error(Code::kInvalidArgument,
                          "JSON Schema keyword \"$ref\" at {}: the reference leads back to the same value without end",
                          model_.path(stack.back().id));
      }
      if (mark == kNew) {
        mark = kOpen;
        stack.push_back({next, in_place(next)});
      }
    }
  }
  return {};
}

}  // namespace deepinfer::grammar
