#include "app/run/load.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "app/terminal/progress_bar.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "engine/single_sequence.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cuda_backend.h"

namespace deepinfer::app {
namespace {

using namespace std::chrono_literals;

constexpr size_t kReadAheadStep = 4 << 20;

// Embeddings are often padded to a round number of rows (DeepSeek's by 465), which a tokenizer of the same model then
// lacks.
int64_t padding_max(int64_t vocab_size) { return std::max<int64_t>(vocab_size / 64, 128); }

Status check_tokenizer(const text::Tokenizer& tokenizer, const checkpoint::ModelConfig& config,
                       const std::string& path) {
  if (tokenizer.vocab_size() > config.vocab_size) {
    return make_error(
        Code::kInvalidArgument,
        "{} has tokens up to id {}, but config.json says {} tokens (vocab_size): it belongs to another model.", path,
        tokenizer.vocab_size() - 1, config.vocab_size);
  }
  int64_t missing = config.vocab_size;
  for (text::TokenId id = 0; id < tokenizer.vocab_size(); ++id) missing -= tokenizer.exists(id);
  if (missing > padding_max(config.vocab_size)) {
    return make_error(Code::kInvalidArgument,
                      "{} has {} tokens, but config.json says {} (vocab_size), and padding explains at most {} of the "
                      "difference: it belongs to another model.",
                      path, config.vocab_size - missing, config.vocab_size, padding_max(config.vocab_size));
  }
  struct Named {
    const char* text;
    int64_t id;
    const char* key;
  };
  for (const Named& n : {Named{"<｜begin▁of▁sentence｜>", config.bos_token_id, "bos_token_id"},
                         Named{"<｜end▁of▁sentence｜>", config.eos_token_id, "eos_token_id"}}) {
    const std::optional<text::TokenId> id = tokenizer.find_added(n.text);
    if (id && *id == n.id) continue;
    return make_error(Code::kInvalidArgument,
                      "{} gives {} {}, but config.json says {} ({}): it belongs to another model.", path, n.text,
                      id ? fmt::format("the id {}", *id) : std::string("no id"), n.id, n.key);
  }
  return Status();
}

// Draws the bar from a thread of its own, because opening a folder reports nothing while it runs.
class LoadingBar {
 public:
  explicit LoadingBar(uint64_t total) : total_(total), drawer_([this] { draw(); }) {}
  ~LoadingBar() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    drawer_.join();
  }
  void add(uint64_t bytes) { done_ += bytes; }

 private:
  void draw() {
    ProgressBar bar("Loading", 1000ms);
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, 100ms, [this] { return ended_; })) bar.update(done_, total_, "");
  }

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
void read_ahead(const checkpoint::Checkpoint& checkpoint, LoadingBar& bar, const std::atomic<bool>* stop) {
  uint64_t total = 0;
  for (const checkpoint::SafetensorsFile& file : checkpoint.files()) total += file.bytes().size();
  if (total > available_memory().bytes) return;
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

// The CUDA backend's shared object lies beside the program.
std::string program_directory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

Result<std::unique_ptr<ops::Ops>> make_ops(const RunOptions& options) {
  const int threads = options.threads > 0 ? options.threads : available_cores();
  if (options.backend == "fast") return ops::make_cpu_ops(threads);
  if (options.backend == "fast-avx2") {
    std::unique_ptr<ops::Ops> fast = ops::make_fast_ops(threads, "avx2");
    if (fast == nullptr)
      return make_error(Code::kInvalidArgument, "This processor lacks AVX2 or FMA, which backend \"fast-avx2\" needs; use plain.");
    return fast;
  }
  if (options.backend == "plain") return ops::make_plain_ops(threads);
  if (options.backend == "reference") return ops::make_reference_ops(ops::ReferenceMode::kExact, threads);
  if (options.backend == "cuda") return ops::open_cuda_ops(0, program_directory());
  return make_error(Code::kInvalidArgument, "There is no backend \"{}\"; there are fast, fast-avx2, plain, reference and cuda.",
                    options.backend);
}

}  // namespace

Result<ModelParts> load_parts(const std::string& dir, const RunOptions& options, const std::atomic<bool>* stop) {
  LoadingBar bar(weight_bytes(dir));
  DI_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened, checkpoint::Checkpoint::open(dir));
  auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(opened));
  const std::string tokenizer_path = dir + "/tokenizer.json";
  DI_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::load(tokenizer_path));
  DI_RETURN_IF_ERROR(check_tokenizer(tokenizer, checkpoint->config(), tokenizer_path));
  DI_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops, make_ops(options));
  read_ahead(*checkpoint, bar, stop);
  if (stop->load()) return Status(Code::kCancelled, "Stopped while loading.");
  return ModelParts{std::move(checkpoint), std::move(tokenizer), std::move(ops)};
}

Result<LoadedModel> load_model(const std::string& dir, const RunOptions& options, const std::atomic<bool>* stop) {
  DI_ASSIGN_OR_RETURN(ModelParts parts, load_parts(dir, options, stop));
  const int64_t context = options.context > 0
                              ? options.context
                              : std::min(kContextDefault, parts.checkpoint->config().max_position_embeddings);
  DI_ASSIGN_OR_RETURN(std::unique_ptr<engine::SequenceModel> model,
                      engine::SingleSequence::create(parts.checkpoint, std::move(parts.ops), context));
  return LoadedModel{std::move(parts.checkpoint), std::move(parts.tokenizer), std::move(model)};
}

}  // namespace deepinfer::app
