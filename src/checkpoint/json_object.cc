#include "checkpoint/json_object.h"

#include <fmt/ranges.h>

namespace deepinfer::checkpoint {

namespace dom = simdjson::dom;

std::string_view json_type_name(dom::element_type type) {
  switch (type) {
    case dom::element_type::ARRAY: return "a list";
    case dom::element_type::OBJECT: return "an object";
    case dom::element_type::INT64:
    case dom::element_type::UINT64: return "an integer";
    case dom::element_type::DOUBLE: return "a fraction";
    case dom::element_type::STRING: return "a string";
    case dom::element_type::BOOL: return "a truth value";
    case dom::element_type::NULL_VALUE: return "null";
  }
  return "something else";
}

void JsonObject::fail(Code code, std::string_view key, std::string_view problem) {
  if (status_.ok())
    status_ = make_error(code, "{}{}{} {}", where_, where_.find(": ") == std::string::npos ? ": " : ".", key, problem);
}

bool JsonObject::find(std::string_view key, dom::element* out, bool required) {
  known_.emplace(key);
  if (object_.at_key(key).get(*out) == simdjson::SUCCESS) return true;
  if (required) fail(Code::kInvalidArgument, key, "is missing");
  return false;
}

bool JsonObject::has(std::string_view key) {
  dom::element e;
  return find(key, &e, false);
}

bool JsonObject::present(std::string_view key) {
  dom::element e;
  return find(key, &e, false) && !e.is_null();
}

void JsonObject::adopt(const Status& failure) {
  if (status_.ok()) status_ = failure;
}

void JsonObject::boolean(std::string_view key, bool* out) {
  dom::element e;
  if (!find(key, &e, true)) return;
  if (e.get(*out) != simdjson::SUCCESS) {
    fail(Code::kInvalidArgument, key, fmt::format("is {}; it must be true or false", json_type_name(e.type())));
  }
}

void JsonObject::integer(std::string_view key, int64_t* out, int64_t low, int64_t high) {
  dom::element e;
  if (!find(key, &e, true)) return;
  int64_t v = 0;
  if (e.get(v) != simdjson::SUCCESS) {
    const bool too_large = e.type() == dom::element_type::UINT64;
    return fail(Code::kInvalidArgument, key,
                too_large ? fmt::format("is too large (at most {})", high)
                          : fmt::format("is {}; it must be an integer", json_type_name(e.type())));
  }
  if (v < low || v > high) {
    return fail(Code::kInvalidArgument, key, fmt::format("is {}; it must lie between {} and {}", v, low, high));
  }
  *out = v;
}

void JsonObject::number(std::string_view key, double* out, double low, double high) {
  dom::element e;
  if (!find(key, &e, true)) return;
  double v = 0;
  if (e.get(v) != simdjson::SUCCESS) {
    return fail(Code::kInvalidArgument, key, fmt::format("is {}; it must be a number", json_type_name(e.type())));
  }
  if (!(v >= low && v <= high)) {
    return fail(Code::kInvalidArgument, key, fmt::format("is {}; it must lie between {} and {}", v, low, high));
  }
  *out = v;
}

void JsonObject::integers(std::string_view key, std::vector<int64_t>* out, int64_t low, int64_t high,
                          size_t max_items) {
  dom::element e;
  if (!find(key, &e, true)) return;
  dom::array list;
  if (e.get(list) != simdjson::SUCCESS) {
    return fail(Code::kInvalidArgument, key,
                fmt::format("is {}; it must be a list of integers", json_type_name(e.type())));
  }
  out->clear();
  for (dom::element item : list) {
    int64_t v = 0;
    if (item.get(v) != simdjson::SUCCESS) {
      return fail(Code::kInvalidArgument, key,
                  fmt::format("holds {}; it must be a list of integers", json_type_name(item.type())));
    }
    if (v < low || v > high) {
      return fail(Code::kInvalidArgument, key,
                  fmt::format("holds {}; its entries must lie between {} and {}", v, low, high));
    }
    if (out->size() == max_items) {
      return fail(Code::kInvalidArgument, key, fmt::format("has more than {} entries", max_items));
    }
    out->push_back(v);
  }
}

dom::object JsonObject::object(std::string_view key) {
  dom::element e;
  dom::object o;
  if (find(key, &e, true) && e.get(o) != simdjson::SUCCESS) {
    fail(Code::kInvalidArgument, key, fmt::format("is {}; it must be an object", json_type_name(e.type())));
  }
  return o;
}

std::string_view JsonObject::text(std::string_view key) {
  dom::element e;
  std::string_view v;
  if (find(key, &e, false) && e.get(v) == simdjson::SUCCESS) return v;
  return {};
}

void JsonObject::must_be_text(std::string_view key, std::string_view want, bool required) {
  dom::element e;
  if (!find(key, &e, required)) return;
  std::string_view v;
  if (e.get(v) != simdjson::SUCCESS) {
    fail(Code::kInvalidArgument, key,
         fmt::format("is {}; it must be the string \"{}\"", json_type_name(e.type()), want));
  } else if (v != want) {
    fail(Code::kUnsupported, key, fmt::format("is \"{}\"; only \"{}\" is supported", v.substr(0, 80), want));
  }
}

void JsonObject::must_be_bool(std::string_view key, bool want, bool required) {
  dom::element e;
  if (!find(key, &e, required)) return;
  bool v = false;
  if (e.get(v) != simdjson::SUCCESS) {
    fail(Code::kInvalidArgument, key, fmt::format("is {}; it must be {}", json_type_name(e.type()), want));
  } else if (v != want) {
    fail(Code::kUnsupported, key, fmt::format("is {}; only {} is supported", v, want));
  }
}

void JsonObject::must_be_number(std::string_view key, int64_t want, bool required) {
  dom::element e;
  if (!find(key, &e, required)) return;
  double v = 0;
  if (e.get(v) != simdjson::SUCCESS) {
    fail(Code::kInvalidArgument, key, fmt::format("is {}; it must be {}", json_type_name(e.type()), want));
  } else if (v != static_cast<double>(want)) {
    fail(Code::kUnsupported, key, fmt::format("is {}; only {} is supported", v, want));
  }
}

void JsonObject::must_be_list(std::string_view key, const std::vector<int64_t>& want, bool required) {
  if (!required && !has(key)) return;
  std::vector<int64_t> v;
  integers(key, &v, INT64_MIN, INT64_MAX, 4096);
  if (status_.ok() && v != want) {
    fail(Code::kUnsupported, key,
         fmt::format("is [{}]; only [{}] is supported", fmt::join(v, ", "), fmt::join(want, ", ")));
  }
}

Status JsonObject::finish() {
  if (!status_.ok()) return status_;
  size_t unknown = 0;
  for (auto field : object_) {
    if (known_.contains(field.key)) continue;
    if (++unknown <= 20)
      warnings_->push_back(fmt::format("{}: unknown key \"{}\" is ignored", where_, field.key.substr(0, 80)));
  }
  if (unknown > 20) warnings_->push_back(fmt::format("{}: {} more unknown keys are ignored", where_, unknown - 20));
  return {};
}

}  // namespace deepinfer::checkpoint
