// Writes checkpoints with random weights, the same bytes anywhere (spec/model.md 19.4).
//
//   make_random_checkpoint tiny OUT           tiny-random of the spec (seed 41)
//   make_random_checkpoint tiny-wide OUT      tiny-wide-random (seed 42)
//   make_random_checkpoint official OUT       the shape of DeepSeek-V4.1-Flash (510 GB)
//   make_random_checkpoint --config FILE OUT  any config.json
// Options: --layers N (only the first N layers), --max-positions N, --seed N, --threads N, --shard-bytes N, --dry-run
// (sizes only), --zeros (no values: files with holes, of no use but to try out sizes).
//
// Without CMake, from the repository root, with g++ and the packages of fmt and simdjson:
//   g++ -std=c++20 -O2 -ffp-contract=off -Isrc -static-libstdc++ tools/make_random_checkpoint.cc
//   src/base/{status,file,thread_pool}.cc
//     src/numeric/dtype.cc
//     src/checkpoint/{config,config_json,config_writer,engram_hash,json_object,random_checkpoint,random_tensor,tensors}.cc
//     -lfmt -lsimdjson -lpthread
// On a machine without those packages the program runs with libfmt.so.9 and libsimdjson.so.14 copied beside it
// (LD_LIBRARY_PATH=.).
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include <unistd.h>

#include "base/file.h"
#include "checkpoint/random_checkpoint.h"

namespace {

using deepinfer::Code;
using deepinfer::Result;
using deepinfer::Status;
using deepinfer::checkpoint::ModelConfig;
using deepinfer::checkpoint::RandomOptions;

struct Arguments {
  std::string preset, config_file, out;
  std::optional<uint64_t> seed;
  int64_t layers = 0, max_positions = 0;
  bool dry_run = false;
  RandomOptions options;
};

Status usage(std::string_view problem) {
  return deepinfer::make_error(Code::kInvalidArgument,
                               "{}\nusage: make_random_checkpoint (tiny|tiny-wide|official|--config FILE) [--layers N] "
                               "[--max-positions N] [--seed N] "
                               "[--threads N] [--shard-bytes N] [--zeros] [--dry-run] OUT_FOLDER",
                               problem);
}

Result<uint64_t> number(const std::string& option, const char* text) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long v = text == nullptr ? 0 : std::strtoull(text, &end, 10);
  if (text == nullptr || *text < '0' || *text > '9' || *end != '\0' || errno != 0)
    return usage(option + " needs a number");
  return uint64_t{v};
}

Result<Arguments> parse(int argc, char** argv) {
  Arguments a;
  std::vector<std::string> plain;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const char* next = i + 1 < argc ? argv[i + 1] : nullptr;
    if (arg == "--dry-run") {
      a.dry_run = true;
    } else if (arg == "--zeros") {
      a.options.zeros = true;
    } else if (arg == "--config" && next != nullptr) {
      a.config_file = argv[++i];
    } else if (arg == "--layers" || arg == "--max-positions" || arg == "--seed" || arg == "--threads" ||
               arg == "--shard-bytes") {
      DI_ASSIGN_OR_RETURN(const uint64_t v, number(arg, next));
      ++i;
      if (arg == "--layers") a.layers = static_cast<int64_t>(v);
      if (arg == "--max-positions") a.max_positions = static_cast<int64_t>(v);
      if (arg == "--seed") a.seed = v;
      if (arg == "--threads") a.options.threads = static_cast<int>(std::min<uint64_t>(v, 1024));
      if (arg == "--shard-bytes") a.options.shard_bytes = v;
    } else if (arg.starts_with("--")) {
      return usage("unknown option or missing value: " + arg);
    } else {
      plain.push_back(arg);
    }
  }
  if (a.config_file.empty() && !plain.empty()) {
    a.preset = plain.front();
    plain.erase(plain.begin());
  }
  if (plain.size() != 1) return usage("give one output folder");
  a.out = plain[0];
  return a;
}

Result<ModelConfig> choose_config(Arguments* a) {
  namespace ckpt = deepinfer::checkpoint;
  ModelConfig config;
  if (!a->config_file.empty()) {
    DI_ASSIGN_OR_RETURN(a->options.config_json, deepinfer::read_file(a->config_file, 4 << 20));
    DI_ASSIGN_OR_RETURN(config, ModelConfig::parse(a->options.config_json));
  } else if (a->preset == "tiny") {
    config = ckpt::tiny_config();
  } else if (a->preset == "tiny-wide") {
    config = ckpt::tiny_wide_config();
    a->options.seed = 42;
  } else if (a->preset == "official") {
    config = ckpt::official_config();
  } else {
    return usage("there is no built-in configuration \"" + a->preset + "\"");
  }
  if (a->seed) a->options.seed = *a->seed;
  if (a->layers > 0 || a->max_positions > 0) a->options.config_json.clear();
  if (a->layers > 0) {
    DI_ASSIGN_OR_RETURN(config, ckpt::first_layers(config, a->layers));
  }
  if (a->max_positions > 0) config.max_position_embeddings = a->max_positions;
  return config;
}

void show_progress(uint64_t done, uint64_t total) {
  static int shown = -1;
  const int percent = static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
  if (percent == shown) return;
  shown = percent;
  std::fprintf(stderr, "\r%3d%% of %.2f GB%s", percent, static_cast<double>(total) / 1e9, done == total ? "\n" : "");
}

Status run(int argc, char** argv) {
  DI_ASSIGN_OR_RETURN(Arguments a, parse(argc, argv));
  DI_ASSIGN_OR_RETURN(const ModelConfig config, choose_config(&a));
  if (a.dry_run) {
    std::printf("%llu payload bytes\n",
                static_cast<unsigned long long>(deepinfer::checkpoint::random_checkpoint_bytes(config)));
    return {};
  }
  if (::isatty(STDERR_FILENO)) a.options.progress = show_progress;
  return deepinfer::checkpoint::write_random_checkpoint(config, a.out, a.options);
}

}  // namespace

int main(int argc, char** argv) {
  const Status s = run(argc, argv);
  if (s.ok()) return 0;
  std::fprintf(stderr, "make_random_checkpoint: %s\n", s.message().c_str());
  return s.code() == Code::kIo || s.code() == Code::kResourceExhausted ? 1 : 2;
}
