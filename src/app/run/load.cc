#include "app/run/load.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "app/run/printer.h"
#include "app/terminal/progress_bar.h"
#include "base/format.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "engine/loading.h"
#include "ops/ops.h"

namespace deepinfer::app {
namespace {

using namespace std::chrono_literals;

constexpr size_t kReadAheadStep = 4 << 20;

// Draws the bar from a thread of its own, because opening a folder reports nothing while it runs.
class LoadingBar {
 public:
  LoadingBar(std::string label, uint64_t total)
      : label_(std::move(label)), total_(total), drawer_([this] { draw(); }) {}
  ~LoadingBar() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    drawer_.join();
  }
  void add(uint64_t bytes) { done_ += bytes; }
  void set(uint64_t bytes) { done_ = bytes; }

 private:
  void draw() {
    ProgressBar bar(label_, 1000ms);
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, 100ms, [this] { return ended_; })) bar.update(done_, total_, "");
  }

  const std::string label_;
  const uint64_t total_;
  std::atomic<uint64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread drawer_;
};

uint64_t weight_bytes(const std::string& dir) {
  uint64_t total = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    if (entry.path().extension() != ".safetensors") continue;
    const uint64_t size = entry.file_size(error);
    if (!error) total += size;
  }
  return total;
}

// Touches every page once. Nothing waits for it but the first answer, so that it is left out where the weights do not
// fit.
void read_ahead(const checkpoint::Checkpoint& checkpoint, uint64_t ram, LoadingBar& bar,
                const std::atomic<bool>* stop) {
  uint64_t total = 0;
  for (const checkpoint::SafetensorsFile& file : checkpoint.files()) total += file.bytes().size();
  if (total > available_memory().bytes || (ram > 0 && total > ram)) return;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  volatile std::byte sink{};
  for (const checkpoint::SafetensorsFile& file : checkpoint.files()) {
    const std::span<const std::byte> bytes = file.bytes();
    ::madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_WILLNEED);
    for (size_t begin = 0; begin < bytes.size() && !stop->load(); begin += kReadAheadStep) {
      const size_t end = std::min(begin + kReadAheadStep, bytes.size());
      for (size_t at = begin; at < end; at += page) sink = bytes[at];
      bar.add(end - begin);
    }
  }
  (void)sink;
}

// Draws a second bar from the first bytes that a GPU has taken to the last.
std::function<void(uint64_t, uint64_t)> copying_bar() {
  return [bar = std::make_shared<std::optional<LoadingBar>>()](uint64_t done, uint64_t total) {
    if (!*bar && done < total) bar->emplace("Copying to the GPU", total);
    if (*bar) (*bar)->set(done);
    if (done == total) bar->reset();
  };
}

}  // namespace

void say_placement(const engine::ExecutorInfo& info) {
  if (!info.placement.empty()) fmt::print(stderr, "GPU: {}\n", info.placement);
}

Result<uint64_t> ram_bytes(const RunOptions& options) {
  return options.ram.empty() ? Result<uint64_t>(uint64_t{0}) : parse_bytes(options.ram);
}

Result<ModelParts> load_parts(const std::string& dir, const RunOptions& options, const std::atomic<bool>* stop) {
  LoadingBar bar("Loading", weight_bytes(dir));
  DI_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened, checkpoint::Checkpoint::open(dir));
  auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(opened));
  const std::string tokenizer_path = dir + "/tokenizer.json";
  DI_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::load(tokenizer_path));
  DI_RETURN_IF_ERROR(engine::check_tokenizer(tokenizer, checkpoint->config(), tokenizer_path));
  std::string note;
  DI_ASSIGN_OR_RETURN(
      std::unique_ptr<ops::Ops> ops,
      engine::make_ops({options.device, options.backend, options.threads, engine::program_directory(),
                        options.pin_threads, options.host_experts, copying_bar()},
                       &note));
  if (!note.empty()) fmt::print(stderr, "{}\n", without_controls(note));
  DI_ASSIGN_OR_RETURN(const uint64_t ram, ram_bytes(options));
  read_ahead(*checkpoint, ram, bar, stop);
  if (stop->load()) return Status(Code::kCancelled, "Stopped while loading.");
  return ModelParts{std::move(checkpoint), std::move(tokenizer), std::move(ops)};
}

Result<LoadedModel> load_model(const std::string& dir, const RunOptions& options, const std::atomic<bool>* stop) {
  DI_ASSIGN_OR_RETURN(ModelParts parts, load_parts(dir, options, stop));
  const int64_t context = options.context > 0
                              ? options.context
                              : std::min(kContextDefault, parts.checkpoint->config().max_position_embeddings);
  DI_ASSIGN_OR_RETURN(const uint64_t ram, ram_bytes(options));
  engine::EngineOptions with;
  add_drafts(options.drafts, &with);
  DI_RETURN_IF_ERROR(read_draft_temperatures(dir, &with));
  DI_ASSIGN_OR_RETURN(
      std::unique_ptr<engine::EngineGenerator> generator,
      engine::EngineGenerator::create(parts.checkpoint, std::move(parts.ops), context, ram, with.drafts));
  say_placement(generator->info());
  return LoadedModel{std::move(parts.checkpoint), std::move(parts.tokenizer), std::move(generator)};
}

}  // namespace deepinfer::app
