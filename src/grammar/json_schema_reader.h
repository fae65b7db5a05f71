// How SchemaModel::parse reads a document (private to the room): keywords into nodes, references through
// SchemaResolver.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/json_schema_model.h"

namespace deepinfer::grammar {

// Finds what a `$ref` points to: JSON pointers, anchors, and `$id`s embedded in the document. Never fetches.
class SchemaResolver {
 public:
  struct Target {
    const JsonValue* value = nullptr;
    const JsonValue* resource = nullptr;
    std::string path;  // below the document's root, for messages
  };

  // Draft 7 and earlier ignore the siblings of `$ref`, `$id` among them; draft 4 writes `id`.
  SchemaResolver(const JsonValue& root, bool draft4, bool draft7)
      : root_(root), id_keyword_(draft4 ? "id" : "$id"), draft7_(draft7) {}

  // `reference` as written in a node of `resource`. An error says what is wrong, without the place of the reference.
  Result<Target> resolve(std::string_view reference, const JsonValue* resource);
  // True when `value` starts a schema resource of its own.
  bool starts_resource(const JsonValue& value) const;
  // True when more than one place could be meant by a dynamic reference of that name, by way of its caller.
  bool is_ambiguous(std::string_view dynamic_reference);

 private:
  struct Resource {
    std::string uri;
    const JsonValue* value;
    std::string path;
  };
  struct Anchor {
    const JsonValue* resource;
    std::string_view name;
    const JsonValue* value;
    std::string path;
    bool dynamic;
  };

  void scan();
  void scan_below(const JsonValue& value, size_t resource, std::string& path);
  void scan(const JsonValue& value, size_t resource, std::string& path);
  Result<Target> walk(std::string_view pointer, const JsonValue* resource, std::string path);

  const JsonValue& root_;
  std::string_view id_keyword_;
  bool draft7_;
  bool scanned_ = false;
  std::vector<Resource> resources_;
  std::vector<Anchor> anchors_;
};

class SchemaReader {
 public:
  SchemaReader(SchemaModel& model, const JsonValue& root, const SchemaLimits& limits);
  Status run();

 private:
  static std::string_view meta_schema(const JsonValue& root);
  static bool is_draft4(std::string_view meta) { return meta.find("draft-04") != std::string_view::npos; }
  static bool is_draft7(std::string_view meta) {
    return is_draft4(meta) || meta.find("draft-06") != std::string_view::npos ||
           meta.find("draft-07") != std::string_view::npos;
  }

  struct Pending {  // a reference that waits for its target's node
    SchemaId from;
    std::string keyword;
    std::string_view reference;
  };

  Result<SchemaId> read(const JsonValue& value, SchemaId parent, std::string step, const JsonValue* resource);
  Status read_keywords(SchemaId id);
  Status read_keyword(SchemaId id, std::string_view name, const JsonValue& value, bool& handled);
  Status read_number(SchemaId id, std::string_view name, const JsonValue& value, bool& handled);
  Status read_string(SchemaId id, std::string_view name, const JsonValue& value, bool& handled);
  Status read_array(SchemaId id, std::string_view name, const JsonValue& value, bool& handled);
  Status read_object(SchemaId id, std::string_view name, const JsonValue& value, bool& handled);
  Status read_applicator(SchemaId id, std::string_view name, const JsonValue& value, bool& handled);
  Status read_type(SchemaId id, const JsonValue& value);
  Status read_dependencies(SchemaId id, std::string_view name, const JsonValue& value);
  Status finish_node(SchemaId id);
  Status resolve_references();
  Status refuse_cycles() const;

  Status child(SchemaId id, std::string_view name, const JsonValue& value, SchemaId& out);
  Status children(SchemaId id, std::string_view name, const JsonValue& value, std::vector<SchemaId>& out);
  Status named_children(SchemaId id, std::string_view name, const JsonValue& value, std::vector<NamedNode>& out);
  Status names(SchemaId id, std::string_view name, const JsonValue& value, std::vector<std::string_view>& out);
  Status count(SchemaId id, std::string_view name, const JsonValue& value, std::optional<int64_t>& out);
  Status decimal(SchemaId id, std::string_view name, const JsonValue& value, std::optional<Decimal>& out);
  Status bad(SchemaId id, std::string_view name, std::string_view what, Code code = Code::kInvalidArgument) const;

  SchemaNode& node(SchemaId id) { return model_.nodes_[static_cast<size_t>(id)]; }
  NumberKeywords& number(SchemaId id);
  StringKeywords& string(SchemaId id);
  ArrayKeywords& array(SchemaId id);
  ObjectKeywords& object(SchemaId id);
  Applicators& applicators(SchemaId id);

  SchemaModel& model_;
  const JsonValue& root_;
  const SchemaLimits& limits_;
  const bool draft4_, draft7_, named_2020_;
  SchemaResolver resolver_;
  std::vector<Pending> pending_;
  std::unordered_map<const JsonValue*, SchemaId> node_of_;
};

}  // namespace deepinfer::grammar
