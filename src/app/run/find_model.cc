#include "app/run/find_model.h"

#include <filesystem>

#include "app/environment.h"
#include "checkpoint/hub.h"

namespace deepinfer::app {
namespace {

namespace fs = std::filesystem;

constexpr int kParentsMax = 8;

Result<std::string> bundled_model() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  fs::path dir = program.parent_path();
  for (int i = 0; i < kParentsMax && !dir.empty(); ++i, dir = dir.parent_path()) {
    for (const char* below : {"models/tiny", "share/deepinfer/models/tiny"}) {
      if (fs::exists(dir / below / "config.json", error)) return (dir / below).string();
    }
    if (dir == dir.root_path()) break;
  }
  return make_error(Code::kNotFound,
                    "The bundled model is not beside {} (models/tiny or share/deepinfer/models/tiny). Name a model: "
                    "deepinfer run MODEL",
                    program.string());
}

}  // namespace

bool is_bundled_model(const std::string& dir) {
  const Result<std::string> bundled = bundled_model();
  std::error_code error;
  return bundled.ok() && fs::equivalent(dir, bundled.value(), error);
}

Result<std::string> find_model(const std::string& name) {
  if (name.empty()) {
    const std::string dir = environment("DEEPINFER_HF_MODEL_DIR");
    return dir.empty() ? bundled_model() : Result<std::string>(dir);
  }
  std::error_code error;
  if (fs::exists(name, error)) return name;
  // A path rather than a name: said by its form, since any word can also be a model.
  const bool path = name.front() == '/' || name.front() == '.' || name.front() == '~' || name.back() == '/';
  const Result<checkpoint::ModelId> id = checkpoint::ModelId::parse(name);
  if (path || !id.ok()) return make_error(Code::kNotFound, "There is no folder {}.", name);
  const std::string cache = hub_config_from_environment().cache_dir;
  Result<std::string> cached = checkpoint::find_in_cache(cache, id.value());
  if (cached.ok()) return cached;
  return make_error(Code::kNotFound,
                    "{} is neither a folder nor a model in the cache ({}). Fetch it with: deepinfer pull {}", name,
                    cache, name);
}

Result<std::string> find_tokenizer(const std::string& name) {
  if (name.ends_with(".json")) return name;
  DI_ASSIGN_OR_RETURN(const std::string dir, find_model(name));
  return dir + "/tokenizer.json";
}

}  // namespace deepinfer::app
