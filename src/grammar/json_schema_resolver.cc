#include <algorithm>

#include "grammar/json_schema_reader.h"

namespace deepinfer::grammar {
namespace {

struct Uri {
  std::string scheme, authority, path, query;
  bool has_scheme = false, has_authority = false, has_query = false;
};

// RFC 3986 appendix B, without the fragment.
Uri split(std::string_view s) {
  Uri u;
  size_t colon = s.find_first_of(":/?");
  if (colon != std::string_view::npos && colon > 0 && s[colon] == ':') {
    u.has_scheme = true;
    u.scheme = s.substr(0, colon);
    s.remove_prefix(colon + 1);
  }
  if (s.starts_with("//")) {
    size_t end = s.find_first_of("/?", 2);
    u.has_authority = true;
    u.authority = s.substr(2, end == std::string_view::npos ? end : end - 2);
    s.remove_prefix(end == std::string_view::npos ? s.size() : end);
  }
  size_t query = s.find('?');
  u.path = s.substr(0, query);
  if (query != std::string_view::npos) u.has_query = true, u.query = s.substr(query + 1);
  return u;
}

std::string remove_dots(std::string_view path) {
  std::vector<std::string_view> out;
  bool slash_end = false;
  size_t i = 0;
  bool absolute = path.starts_with('/');
  while (i <= path.size()) {
    size_t end = std::min(path.find('/', i), path.size());
    std::string_view part = path.substr(i, end - i);
    slash_end = part.empty() || part == "." || part == "..";
    if (part == "..") {
      if (!out.empty()) out.pop_back();
    } else if (part != "." && !(part.empty() && end == path.size()) && !(part.empty() && i == 0)) {
      out.push_back(part);
    }
    i = end + 1;
  }
  std::string text = absolute ? "/" : "";
  for (size_t k = 0; k < out.size(); ++k) {
    if (k) text += '/';
    text += out[k];
  }
  if (slash_end && !out.empty()) text += '/';
  return text;
}

// RFC 3986 section 5.2.2.
std::string join(std::string_view base_text, std::string_view reference) {
  Uri r = split(reference), base = split(base_text), t;
  if (r.has_scheme) return std::string(reference);
  t.has_scheme = base.has_scheme;
  t.scheme = base.scheme;
  if (r.has_authority) {
    t.has_authority = true, t.authority = r.authority, t.path = remove_dots(r.path), t.has_query = r.has_query,
    t.query = r.query;
  } else {
    t.has_authority = base.has_authority, t.authority = base.authority;
    if (r.path.empty()) {
      t.path = base.path;
      t.has_query = r.has_query || base.has_query;
      t.query = r.has_query ? r.query : base.query;
    } else {
      if (r.path.starts_with('/')) {
        t.path = remove_dots(r.path);
      } else if (base.has_authority && base.path.empty()) {
        t.path = remove_dots("/" + r.path);
      } else {
        size_t slash = base.path.rfind('/');
        t.path = remove_dots((slash == std::string::npos ? "" : base.path.substr(0, slash + 1)) + r.path);
      }
      t.has_query = r.has_query, t.query = r.query;
    }
  }
  std::string out;
  if (t.has_scheme) out += t.scheme + ":";
  if (t.has_authority) out += "//" + t.authority;
  out += t.path;
  if (t.has_query) out += "?" + t.query;
  return out;
}

std::string percent_decoded(std::string_view s) {
  auto hex = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '%' && i + 2 < s.size() && hex(s[i + 1]) >= 0 && hex(s[i + 2]) >= 0) {
      out += static_cast<char>(hex(s[i + 1]) * 16 + hex(s[i + 2]));
      i += 2;
    } else {
      out += s[i];
    }
  }
  return out;
}

bool is_any_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool holds_a_schema(std::string_view keyword) {
  return is_any_of(keyword,
                   {"items", "additionalItems", "contains", "additionalProperties", "propertyNames", "unevaluatedItems",
                    "unevaluatedProperties", "not", "if", "then", "else", "contentSchema"});
}

bool holds_schemas(std::string_view keyword) {
  return is_any_of(keyword, {"$defs", "definitions", "properties", "patternProperties", "dependentSchemas",
                             "dependencies", "prefixItems", "allOf", "anyOf", "oneOf"});
}

std::string_view without_fragment(std::string_view uri) { return uri.substr(0, uri.find('#')); }

}  // namespace

bool SchemaResolver::starts_resource(const JsonValue& value) const {
  const JsonValue* id = value.find(id_keyword_);
  if (id && draft7_ && value.find("$ref")) return false;
  return id && id->is_string() && !id->text().empty() && id->text()[0] != '#';
}

bool SchemaResolver::is_ambiguous(std::string_view dynamic_reference) {
  scan();
  size_t hash = dynamic_reference.find('#');
  // `$recursiveRef` is always "#": its anchors have the empty name.
  std::string_view name = hash == std::string_view::npos ? std::string_view() : dynamic_reference.substr(hash + 1);
  if (name.starts_with('/')) return false;
  if (name.empty()) return resources_.size() > 1;
  return std::count_if(anchors_.begin(), anchors_.end(), [&](const Anchor& a) { return a.dynamic && a.name == name; }) >
         1;
}

void SchemaResolver::scan() {
  if (scanned_) return;
  scanned_ = true;
  resources_.push_back({"", &root_, ""});
  std::string path;
  scan(root_, 0, path);
}

// A schema. Only places that hold schemas are entered: an $id elsewhere is plain data.
void SchemaResolver::scan(const JsonValue& value, size_t resource, std::string& path) {
  if (!value.is_object()) return;
  if (const JsonValue* id = value.find(id_keyword_); id && id->is_string()) {
    if (starts_resource(value)) {
      std::string uri = join(resources_[resource].uri, without_fragment(id->text()));
      if (&value == &root_) {
        resources_[0].uri = uri;
      } else {
        resources_.push_back({uri, &value, path});
        resource = resources_.size() - 1;
      }
    }
    if (size_t hash = id->text().find('#'); hash != std::string_view::npos && hash + 1 < id->text().size()) {
      anchors_.push_back({resources_[resource].value, id->text().substr(hash + 1), &value, path, false});
    }
  }
  for (std::string_view keyword : {"$anchor", "$dynamicAnchor"}) {
    const JsonValue* anchor = value.find(keyword);
    if (anchor && anchor->is_string())
      anchors_.push_back({resources_[resource].value, anchor->text(), &value, path, keyword == "$dynamicAnchor"});
  }
  const size_t length = path.size();
  for (uint32_t i = 0; i < value.size(); ++i) {
    const JsonMember& member = value.members()[i];
    append_pointer(member.name, path);
    if (holds_a_schema(member.name)) {
      member.value.is_array() ? scan_below(member.value, resource, path) : scan(member.value, resource, path);
    } else if (holds_schemas(member.name)) {
      scan_below(member.value, resource, path);
    }
    path.resize(length);
  }
}

// An array or object of schemas.
void SchemaResolver::scan_below(const JsonValue& value, size_t resource, std::string& path) {
  const size_t length = path.size();
  const bool array = value.is_array();
  for (uint32_t i = 0; (array || value.is_object()) && i < value.size(); ++i) {
    append_pointer(array ? std::string_view(std::to_string(i)) : value.members()[i].name, path);
    scan(array ? value[i] : value.members()[i].value, resource, path);
    path.resize(length);
  }
}

Result<SchemaResolver::Target> SchemaResolver::resolve(std::string_view reference, const JsonValue* resource) {
  size_t hash = reference.find('#');
  std::string_view uri = reference.substr(0, hash);
  std::string fragment = hash == std::string_view::npos ? std::string() : percent_decoded(reference.substr(hash + 1));
  std::string path;
  if (!uri.empty() || resource != &root_) scan();
  if (resource != &root_) {
    auto it =
        std::find_if(resources_.begin(), resources_.end(), [&](const Resource& r) { return r.value == resource; });
    if (it != resources_.end()) path = it->path;
  }
  if (!uri.empty()) {
    auto base =
        std::find_if(resources_.begin(), resources_.end(), [&](const Resource& r) { return r.value == resource; });
    std::string full = join(base == resources_.end() ? "" : base->uri, uri);
    auto it = std::find_if(resources_.begin(), resources_.end(),
                           [&](const Resource& r) { return !r.uri.empty() && r.uri == full; });
    if (it == resources_.end()) {
      return make_error(Code::kInvalidArgument, "\"{}\" points outside the document; copy what it names into $defs",
                        reference);
    }
    resource = it->value;
    path = it->path;
  }
  if (fragment.empty()) return Target{resource, resource, path};
  if (fragment[0] == '/') {
    auto target = walk(fragment, resource, path);
    if (!target.ok()) return make_error(Code::kInvalidArgument, "\"{}\" does not exist in the document", reference);
    return target;
  }
  scan();
  auto it = std::find_if(anchors_.begin(), anchors_.end(),
                         [&](const Anchor& a) { return a.resource == resource && a.name == fragment; });
  if (it == anchors_.end())
    return make_error(Code::kInvalidArgument, "\"{}\" names an anchor that does not exist", reference);
  return Target{it->value, resource, it->path};
}

Result<SchemaResolver::Target> SchemaResolver::walk(std::string_view pointer, const JsonValue* resource,
                                                    std::string path) {
  Target t{resource, resource, std::move(path)};
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    size_t end = std::min(pointer.find('/'), pointer.size());
    std::string token;
    for (size_t i = 0; i < end; ++i) {
      if (pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1')) {
        token += pointer[++i] == '0' ? '~' : '/';
      } else {
        token += pointer[i];
      }
    }
    pointer.remove_prefix(end);
    const JsonValue* next = nullptr;
    if (t.value->is_object()) {
      next = t.value->find(token);
    } else if (t.value->is_array() && !token.empty() && token.size() < 10 &&
               token.find_first_not_of("0123456789") == std::string::npos) {
      uint32_t i = static_cast<uint32_t>(std::stoul(token));
      if (i < t.value->size()) next = &(*t.value)[i];
    }
    if (!next) return make_error(Code::kNotFound, "no such place");
    append_pointer(token, t.path);
    t.value = next;
    if (next->is_object() && starts_resource(*next)) t.resource = next;
  }
  return t;
}

}  // namespace deepinfer::grammar
