#include "app/run/load.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "app/terminal/progress_bar.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "engine/single_sequence.h"
#include "ops/cpu/cpu_ops.h"

namespace deepinfer::app {
namespace {

using namespace std::chrono_literals;

constexpr size_t kReadAheadStep = 4 << 20;

Status check_tokenizer(const text::Tokenizer& tokenizer, const checkpoint::ModelConfig& config, const std::string& path) {
  if (tokenizer.vocab_size() > config.vocab_size) {
    return make_error(Code::kInvalidArgument, "{} has tokens up to id {}, but config.json says {} tokens (vocab_size): it belongs to another model.",
                      path, tokenizer.vocab_size() - 1, config.vocab_size);
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
    return make_error(Code::kInvalidArgument, "{} gives {} {}, but config.json says {} ({}): it belongs to another model.", path, n.text,
                      id ? fmt::format("the id {}", *id) : std::string("no id"), n.id, n.key);
  }
  return Status();
}

// Touches every page once. Nothing waits for it but the first answer, so that it is left out where the weights do not fit.
void read_ahead(const checkpoint::Checkpoint& checkpoint, ProgressBar& bar, const std::atomic<bool>* stop) {
  uint64_t total = 0, done = 0;
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
      done += end - begin;
      bar.update(done, total, "");
    }
  }
  (void)sink;
}

Result<std::unique_ptr<ops::Ops>> make_ops(const RunOptions& options) {
  const int threads = options.threads > 0 ? options.threads : available_cores();
  if (options.backend == "plain") return ops::make_plain_ops(threads);
  if (options.backend == "reference") return ops::make_reference_ops(ops::ReferenceMode::kExact, threads);
  return make_error(Code::kInvalidArgument, "There is no backend \"{}\"; there are plain and reference.", options.backend);
}

}  // namespace

Result<LoadedModel> load_model(const std::string& dir, const RunOptions& options, const std::atomic<bool>* stop) {
  ProgressBar bar("Loading", 1000ms);
  DI_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened, checkpoint::Checkpoint::open(dir));
  auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(opened));
  const checkpoint::ModelConfig& config = checkpoint->config();
  const std::string tokenizer_path = dir + "/tokenizer.json";
  DI_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::load(tokenizer_path));
  DI_RETURN_IF_ERROR(check_tokenizer(tokenizer, config, tokenizer_path));
  DI_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops, make_ops(options));
  const int64_t context = options.context > 0 ? options.context : std::min(kContextDefault, config.max_position_embeddings);
  DI_ASSIGN_OR_RETURN(std::unique_ptr<engine::SequenceModel> model, engine::SingleSequence::create(checkpoint, std::move(ops), context));
  read_ahead(*checkpoint, bar, stop);
  if (stop->load()) return Status(Code::kCancelled, "Stopped while loading.");
  return LoadedModel{std::move(checkpoint), std::move(tokenizer), std::move(model)};
}

}  // namespace deepinfer::app
