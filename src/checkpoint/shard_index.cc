#include "checkpoint/shard_index.h"

#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "checkpoint/json_object.h"

namespace deepinfer::checkpoint {
namespace {

namespace dom = simdjson::dom;
namespace fs = std::filesystem;

constexpr uint64_t kMaxIndexBytes = 256 << 20;
constexpr size_t kMaxShards = 10'000;

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

Result<ShardIndex> without_index(const std::string& directory) {
  if (exists(directory + "/model.safetensors")) return ShardIndex{{"model.safetensors"}, {}, false};
  size_t shards = 0;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    shards += it->path().extension() == ".safetensors";
  }
  if (shards == 0) {
    return make_error(Code::kFailedPrecondition,
                      "{} holds no weights: neither model.safetensors.index.json nor a .safetensors file", directory);
  }
  return make_error(Code::kFailedPrecondition,
                    "{} holds {} .safetensors files but no model.safetensors.index.json; fetch the index file too",
                    directory, shards);
}

Status parse_index(std::string_view json, ShardIndex* index) {
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root)) {
    return make_error(Code::kInvalidArgument, "model.safetensors.index.json is not valid JSON: {}",
                      simdjson::error_message(error));
  }
  dom::object map;
  if (root["weight_map"].get(map))
    return make_error(Code::kInvalidArgument, "model.safetensors.index.json has no object \"weight_map\"");
  std::map<std::string, uint32_t, std::less<>> numbers;
  for (auto field : map) {
    std::string_view file;
    if (field.value.get(file))
      return make_error(Code::kInvalidArgument, "model.safetensors.index.json: the file of \"{}\" is not a string",
                        field.key.substr(0, 120));
    if (file.empty() || file[0] == '.' || file.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
      return make_error(Code::kInvalidArgument, "model.safetensors.index.json: \"{}\" is not a plain file name",
                        file.substr(0, 120));
    }
    auto it = numbers.find(file);
    if (it == numbers.end()) {
      if (numbers.size() == kMaxShards)
        return make_error(Code::kInvalidArgument, "model.safetensors.index.json names more than {} files", kMaxShards);
      it = numbers.emplace(file, static_cast<uint32_t>(numbers.size())).first;
    }
    index->tensors.emplace_back(field.key, it->second);
  }
  // Number the files in the order of their names.
  std::vector<uint32_t> rank(numbers.size());
  for (const auto& [file, number] : numbers) {
    rank[number] = static_cast<uint32_t>(index->files.size());
    index->files.push_back(file);
  }
  for (auto& [name, file] : index->tensors) file = rank[file];
  index->has_index = true;
  return {};
}

}  // namespace

std::string_view canonical_name(std::string_view name) {
  constexpr std::string_view kPrefix = "model.";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

Result<ShardIndex> read_shard_index(const std::string& directory) {
  Result<std::string> json = read_file(directory + "/model.safetensors.index.json", kMaxIndexBytes);
  if (!json.ok()) {
    if (json.status().code() == Code::kNotFound) return without_index(directory);
    return json.status();
  }
  ShardIndex index;
  const Status parsed = parse_index(json.value(), &index);
  if (!parsed.ok()) return parsed.with_context(directory);
  std::vector<std::string> missing;
  for (const std::string& file : index.files) {
    if (!exists(directory + "/" + file)) missing.push_back(file);
  }
  if (!missing.empty()) {
    return make_error(Code::kFailedPrecondition, "{}: {} of {} shards missing, first {}; fetch them again", directory,
                      missing.size(), index.files.size(), missing[0]);
  }
  return index;
}

}  // namespace deepinfer::checkpoint
