// The compiled half of the Python package (python/deepinfer): plain values in, plain values and NumPy arrays out.
// What users see is written in Python on top of it.
#include <atomic>
#include <chrono>
#include <numeric>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "app/draft_flags.h"
#include "app/options/llm_options.h"
#include "app/options/values.h"
#include "app/run/find_model.h"
#include "app/terminal/progress_bar.h"
#include "checkpoint/config.h"
#include "engine/llm.h"
#include "python/request.h"
#include "python/results.h"
#include "recipe/json.h"
#include "recipe/request.h"

namespace py = pybind11;

namespace deepinfer::python {
namespace {

using namespace std::chrono_literals;

// Runs `work` without the interpreter lock. Ctrl-C and other signals are seen by on_progress.
class Call {
 public:
  Call(std::string label, bool show) : show_(show), bar_(std::move(label), 1000ms, app::ProgressBar::Unit::kItems) {}

  GenerateControl control() {
    return {.stop = &stop_, .on_progress = [this](const GenerateProgress& p) { progress(p); }};
  }
  template <class Work>
  auto run(const Work& work) {
    const py::gil_scoped_release release;
    return work();
  }
  template <class T>
  T finish(Result<T>&& result) {
    bar_.finish();
    if (interrupted_) throw py::error_already_set();
    check(result.status());
    return std::move(result).value();
  }

 private:
  void progress(const GenerateProgress& p) {
    const auto now = std::chrono::steady_clock::now();
    if (now - seen_ < 50ms || interrupted_) return;
    seen_ = now;
    {
      const py::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) {
        interrupted_ = true;
        stop_ = true;
        return;
      }
    }
    if (!show_) return;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    bar_.update(static_cast<uint64_t>(p.prompts_done), static_cast<uint64_t>(p.prompts),
                fmt::format("{:.1f} tokens/s", static_cast<double>(p.output_tokens) / seconds));
  }

  std::atomic<bool> stop_{false};
  const bool show_;
  bool interrupted_ = false;  // a Python error is set
  app::ProgressBar bar_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point seen_{};
};

// A conversation from the fields of a Chat Completions request.
recipe::Conversation conversation_of(const std::string& body) {
  recipe::RequestOptions options;
  options.models = {{"deepseek-v4.1-flash", recipe::Version::kV41}};
  options.accept_any_model = true;
  recipe::Request request;
  if (const auto error = recipe::parse_request(recipe::Protocol::kChat, body, options, request)) {
    throw py::value_error(fmt::format("{}{}{}", error->param, error->param.empty() ? "" : ": ", error->message));
  }
  for (const recipe::Message& m : request.conversation.messages) {
    if (!m.content.images.empty()) throw py::value_error("Images are not possible in offline chats yet.");
  }
  return std::move(request.conversation);
}

class Model {
 public:
  // `flags`: options of the table by name. `more`: what is no option of the program.
  Model(const std::string& model, const std::map<std::string, std::string>& flags, const std::string& config,
        const py::dict& more) {
    app::OptionInputs inputs{.command = "python", .config_path = config, .environment = app::deepinfer_environment()};
    for (const auto& [name, value] : flags) inputs.flags[name] = {value};
    if (!model.empty()) inputs.flags["model"] = {model};
    Result<app::OptionValues> values = app::resolve_options(inputs);
    check(values.status());
    notes_ = values->notes;
    LlmOptions options;
    check(app::read_llm_options(values.value(), &options));
    std::string name, prefill;
    values->read("model", &name);
    values->read("prefill", &prefill);
    full_prefill_ = prefill == "full";
    app::DraftFlags drafts;
    values->read("drafts", &drafts.drafts);
    values->read("draft-confidence", &drafts.confidence);
    values->read("draft-text", &drafts.text);
    values->read("draft-history", &drafts.history);
    values->read("draft-ahead", &drafts.ahead);
    app::add_drafts(drafts, &options.engine);
    options.tokenizer = more["tokenizer"].cast<std::string>();
    options.library_dir = more["library_dir"].cast<std::string>();
    options.dummy_weights = more["dummy_weights"].cast<bool>();
    options.dummy_seed = options.engine.seed = more["seed"].cast<uint64_t>();
    Result<std::unique_ptr<LLM>> opened = Status(Code::kInternal, "not opened");
    {
      const py::gil_scoped_release release;
      Result<std::string> dir = app::find_model(name);
      Status ready = dir.status();
      if (ready.ok()) ready = app::read_draft_temperatures(options.model = dir.value(), &options.engine);
      opened = ready.ok() ? LLM::open(options) : ready;
    }
    check(opened.status());
    llm_ = std::move(opened).value();
  }
  ~Model() { close(); }

  void close() {
    const py::gil_scoped_release release;
    llm_.reset();
  }

  py::list generate(const py::list& prompts, const py::list& parameters, bool progress, bool logits) {
    LLM& llm = open();
    std::vector<PromptInput> inputs;
    for (const py::handle& p : prompts) inputs.push_back(prompt_of(p));
    std::vector<engine::Request> requests = requests_of(llm, parameters);
    Call call("Generating", progress);
    GenerateControl control = call.control();
    control.logits = logits;
    auto done = call.run([&] { return llm.generate(inputs, requests, control); });
    return results_of(call.finish(std::move(done)), llm);
  }

  py::list chat(const std::vector<std::string>& bodies, const py::list& parameters, bool progress) {
    LLM& llm = open();
    std::vector<recipe::Conversation> conversations;
    for (const std::string& body : bodies) conversations.push_back(conversation_of(body));
    std::vector<engine::Request> requests = requests_of(llm, parameters);
    Call call("Answering", progress);
    auto done = call.run([&] { return llm.chat(conversations, requests, call.control()); });
    return chat_results_of(call.finish(std::move(done)), llm);
  }

  py::object logits(const py::handle& prompt) {
    LLM& llm = open();
    const PromptInput input = prompt_of(prompt);
    Call call("Running", false);
    auto rows = call.run([&] { return llm.logits(input, call.control()); });
    std::vector<float> values = call.finish(std::move(rows));
    const auto vocab = static_cast<py::ssize_t>(llm.config().vocab_size);
    const auto count = static_cast<py::ssize_t>(values.size()) / vocab;
    return to_array(std::move(values)).attr("reshape")(count, vocab);
  }

  py::object tokenize(const std::string& text) {
    Result<std::vector<int32_t>> ids = open().tokenize(text);
    check(ids.status());
    return to_array(std::move(ids).value());
  }
  std::string detokenize(const std::vector<int32_t>& ids) { return open().detokenize(ids); }

  py::dict draft_stats() {
    const engine::DraftStats drafts = open().engine().stats().drafts;
    py::dict d;
    d["made"] = drafts.drafted;
    d["checked"] = drafts.verify_rows;
    d["right"] = std::accumulate(drafts.accepted.begin(), drafts.accepted.end(), int64_t{0});
    return d;
  }

  py::dict info() {
    LLM& llm = open();
    py::dict d;
    d["vocab_size"] = llm.config().vocab_size;
    d["bos_token_id"] = llm.config().bos_token_id;
    d["eos_token_id"] = llm.config().eos_token_id;
    d["max_model_len"] = llm.engine().info().context_max;
    d["max_num_seqs"] = llm.engine().info().sequences_max;
    d["has_tokenizer"] = llm.has_tokenizer();
    d["notes"] = notes_;
    return d;
  }

 private:
  LLM& open() {
    if (llm_ == nullptr) throw py::value_error("This LLM was closed.");
    return *llm_;
  }
  std::vector<engine::Request> requests_of(LLM& llm, const py::list& parameters) const {
    std::vector<engine::Request> requests;
    for (const py::handle& p : parameters) {
      requests.push_back(request_of(llm, p.cast<py::dict>()));
      requests.back().full_prefill |= full_prefill_;
    }
    return requests;
  }

  std::unique_ptr<LLM> llm_;
  std::vector<std::string> notes_;
  bool full_prefill_ = false;
};

}  // namespace
}  // namespace deepinfer::python

PYBIND11_MODULE(_core, m) {
  using deepinfer::python::Model;
  m.doc() = "The compiled half of deepinfer; use the package instead.";
  deepinfer::python::declare_values(m);
  py::class_<Model>(m, "Model")
      .def(py::init<const std::string&, const std::map<std::string, std::string>&, const std::string&,
                    const py::dict&>())
      .def("close", &Model::close)
      .def("generate", &Model::generate)
      .def("chat", &Model::chat)
      .def("logits", &Model::logits)
      .def("tokenize", &Model::tokenize)
      .def("detokenize", &Model::detokenize)
      .def("draft_stats", &Model::draft_stats)
      .def("info", &Model::info);
}
