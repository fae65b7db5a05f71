#include "engine/llm.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "checkpoint/random_checkpoint.h"
#include "engine/llm_impl.h"
#include "engine/loading.h"
#include "engine/model_executor.h"
#include "grammar/constraint.h"
#include "ops/ops.h"
#include "recipe/json.h"
#include "text/detokenizer.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kConfigBytesMax = 4 << 20;
constexpr uint64_t kLogitsMax = uint64_t{1} << 31;

// A folder that goes with the object. Files in it may still be mapped.
class TemporaryFolder {
 public:
  Status make() {
    std::error_code error;
    std::string path = (fs::temp_directory_path(error) / "deepinfer-dummy-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      return make_error(Code::kIo, "Cannot make a folder for the dummy weights ({}): {}.", path, std::strerror(errno));
    }
    path_ = std::move(path);
    return Status();
  }
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Result<checkpoint::Checkpoint> open_checkpoint(const LlmOptions& o) {
  if (!o.dummy_weights) return checkpoint::Checkpoint::open(o.model);
  checkpoint::RandomOptions random{.seed = o.dummy_seed, .threads = o.threads};
  DI_ASSIGN_OR_RETURN(random.config_json, read_file(o.model + "/config.json", kConfigBytesMax));
  DI_ASSIGN_OR_RETURN(const checkpoint::ModelConfig config, checkpoint::ModelConfig::parse(random.config_json));
  TemporaryFolder folder;
  DI_RETURN_IF_ERROR(folder.make());
  const std::string to = folder.path() + "/model";
  DI_RETURN_IF_ERROR(checkpoint::write_random_checkpoint(config, to, random));
  std::error_code error;  // what is not there is not needed, or missed by open()
  for (const char* name : {"tokenizer.json", "engram_token_classes.json", "generation_config.json"}) {
    fs::copy_file(fs::path(o.model) / name, fs::path(to) / name, fs::copy_options::overwrite_existing, error);
  }
  return checkpoint::Checkpoint::open(to);
}

// None where the model's folder has no tokenizer.json and none was named.
Result<std::optional<text::Tokenizer>> open_tokenizer(const LlmOptions& o, const checkpoint::ModelConfig& config) {
  std::error_code error;
  std::string path = o.tokenizer.empty() ? o.model : o.tokenizer;
  if (fs::is_directory(path, error)) path += "/tokenizer.json";
  if (o.tokenizer.empty() && !fs::exists(path, error)) return std::optional<text::Tokenizer>();
  DI_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::load(path));
  DI_RETURN_IF_ERROR(engine::check_tokenizer(tokenizer, config, path));
  return std::optional<text::Tokenizer>(std::move(tokenizer));
}

// so_args' strict mode (spec/deepinfer.md G2): an object that names its properties has no others unless it says so.
// What allOf joins stays open, since each part names only some.
void close_objects(recipe::Json* schema) {
  if (schema->is_array()) {
    for (recipe::Json& part : schema->as_array()) close_objects(&part);
  }
  if (!schema->is_object()) return;
  for (recipe::JsonMember& m : schema->as_object()) {
    if (m.key == "enum" || m.key == "const" || m.key == "default" || m.key == "examples" || m.key == "allOf") continue;
    close_objects(&m.value);
  }
  const recipe::Json* properties = schema->find("properties");
  if (properties == nullptr || !properties->is_object()) return;
  for (const char* open : {"additionalProperties", "unevaluatedProperties", "patternProperties", "allOf"}) {
    if (schema->find(open) != nullptr) return;
  }
  schema->set("additionalProperties", false);
}

}  // namespace

Result<std::unique_ptr<LLM>> LLM::open(const LlmOptions& options) {
  auto impl = std::make_unique<Impl>();
  LlmOptions& o = impl->options = options;
  if (o.library_dir.empty()) o.library_dir = engine::program_directory();
  DI_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened, open_checkpoint(o));
  impl->checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(opened));
  const checkpoint::ModelConfig& config = impl->checkpoint->config();
  DI_ASSIGN_OR_RETURN(impl->tokenizer, open_tokenizer(o, config));
  if (impl->tokenizer) impl->vocabulary = recipe::OutputVocabulary(*impl->tokenizer);
  const engine::ComputeOptions compute{o.device,      o.backend,     o.threads,
                                       o.library_dir, o.pin_threads, o.host_experts};
  DI_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops,
                      engine::make_ops(compute));
  const double peak = o.count_work ? engine::peak_flops(*ops, compute) : 0;
  if (o.context <= 0) o.context = std::min(kContextDefault, config.max_position_embeddings);
  const engine::DraftOptions& drafts = o.engine.drafts;
  DI_ASSIGN_OR_RETURN(
      std::unique_ptr<engine::ModelExecutor> executor,
      engine::ModelExecutor::create(
          impl->checkpoint, std::move(ops),
          {.context_max = o.context, .sequences_max = o.sequences, .rows_max = std::max(o.rows, o.sequences),
           .drafts_max = drafts.mode == engine::DraftMode::kOff || !drafts.model ? 0 : drafts.drafts_max,
           .ram_bytes = o.ram_bytes,
           .count_work = o.count_work, .peak_flops = peak}));
  if (o.keep > 0) o.engine.keep_extra = static_cast<int>(o.keep) - executor->info().window;
  const auto& ends = impl->checkpoint->generation().eos_token_ids;
  o.engine.end_tokens.insert(o.engine.end_tokens.end(), ends.begin(), ends.end());
  if (o.engine.end_tokens.empty()) o.engine.end_tokens = {static_cast<int32_t>(config.eos_token_id)};
  DI_ASSIGN_OR_RETURN(impl->engine, engine::Engine::create(std::move(executor), impl->tokenizer, o.engine));
  return std::unique_ptr<LLM>(new LLM(std::move(impl)));
}

LLM::LLM(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LLM::~LLM() = default;

const checkpoint::ModelConfig& LLM::config() const { return impl_->checkpoint->config(); }
bool LLM::has_tokenizer() const { return impl_->tokenizer.has_value(); }
engine::Engine& LLM::engine() { return *impl_->engine; }

Result<std::vector<int32_t>> LLM::tokenize(std::string_view text) const {
  if (!impl_->tokenizer) {
    return Status(Code::kFailedPrecondition, "This model has no tokenizer.json; give prompts as token ids.");
  }
  if (text.empty()) return Status(Code::kInvalidArgument, "The prompt is empty; it needs at least one token.");
  std::vector<int32_t> ids = impl_->tokenizer->encode(text, text::AddedTokens::kRecognise);
  const auto bos = static_cast<int32_t>(config().bos_token_id);
  if (ids.empty() || ids.front() != bos) ids.insert(ids.begin(), bos);
  return ids;
}

std::string LLM::detokenize(std::span<const int32_t> ids) const {
  std::string text;
  if (!impl_->tokenizer) return text;
  text::Detokenizer detokenizer(*impl_->tokenizer);
  for (int32_t id : ids) text += detokenizer.push(id);
  return text;
}

Status LLM::Impl::make_encoder() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (encoder) return Status();
  if (!tokenizer) return Status(Code::kFailedPrecondition, "This model has no tokenizer.json, which chats need.");
  DI_ASSIGN_OR_RETURN(recipe::SpecialIds specials, recipe::SpecialIds::find(*tokenizer, recipe::Version::kV41));
  encoder = std::make_unique<recipe::PromptEncoder>(*tokenizer, specials, recipe::PromptEncoder::Options());
  return Status();
}

Status LLM::Impl::make_compiler() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (compiler) return Status();
  if (!tokenizer) {
    return Status(Code::kFailedPrecondition, "This model has no tokenizer.json, which structured output needs.");
  }
  std::vector<uint32_t> ends(options.engine.end_tokens.begin(), options.engine.end_tokens.end());
  DI_ASSIGN_OR_RETURN(auto words, grammar::Vocabulary::from_tokenizer(*tokenizer, std::move(ends)));
  grammar::Compiler::Options compiler_options;
  compiler_options.threads = options.grammar_threads;
  compiler_options.cache_bytes_max = options.grammar_cache_bytes;
  compiler_options.limits.compile_ms = static_cast<uint32_t>(options.grammar_timeout_s * 1000);
  compiler = std::make_unique<grammar::Compiler>(std::move(words), compiler_options);
  return Status();
}

Status LLM::constrain(const grammar::Constraint& constraint, engine::Request* r) {
  DI_RETURN_IF_ERROR(impl_->make_compiler());
  DI_ASSIGN_OR_RETURN(const auto job, impl_->compiler->submit(constraint));
  job->wait_ms(UINT32_MAX);  // bounded by the compile's own limit
  DI_ASSIGN_OR_RETURN(r->grammar, job->result());
  return Status();
}

Status LLM::constrain_so_args(std::string_view so_args, engine::Request* r) {
  DI_ASSIGN_OR_RETURN(grammar::SoArgs args, grammar::parse_so_args(so_args));
  if (args.constraint.kind == grammar::ConstraintKind::kJsonSchema) {
    DI_ASSIGN_OR_RETURN(recipe::Json schema, recipe::parse_json(args.constraint.source));
    close_objects(&schema);
    args.constraint.source = recipe::to_compact_json(schema);
  }
  DI_RETURN_IF_ERROR(constrain(args.constraint, r));
  r->grammar_after.assign(args.trigger_token_ids.begin(), args.trigger_token_ids.end());
  r->grammar_bound = args.bound_token_id ? static_cast<int32_t>(*args.bound_token_id) : -1;
  return Status();
}

Result<std::vector<float>> LLM::logits(const PromptInput& prompt, const GenerateControl& control) {
  std::vector<int32_t> ids = prompt.tokens;
  if (!prompt.is_tokens) {
    DI_ASSIGN_OR_RETURN(ids, tokenize(prompt.text));
  }
  const auto vocab = static_cast<size_t>(config().vocab_size);
  if (ids.size() * vocab > kLogitsMax) {
    return make_error(Code::kResourceExhausted, "The logits of {} tokens are {} numbers; at most {} are possible.",
                      ids.size(), ids.size() * vocab, kLogitsMax);
  }
  std::vector<float> rows(ids.size() * vocab);
  engine::Request r;
  r.max_tokens = 1;
  r.prompt_logprobs = true;
  r.on_logits = [&](int32_t, int32_t position, std::span<const float> row) {
    if (position >= 1 && static_cast<size_t>(position) <= ids.size()) {
      std::ranges::copy(row, rows.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(position - 1) * vocab));
    }
  };
  const PromptInput input(ids);
  DI_ASSIGN_OR_RETURN(
      std::vector<Completion> done,
      generate(std::span(&input, 1), std::span(&r, 1), {.stop = control.stop, .on_progress = control.on_progress}));
  DI_RETURN_IF_ERROR(done[0].answers[0].error);
  return rows;
}

}  // namespace deepinfer
