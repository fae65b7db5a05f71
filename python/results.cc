#include "python/results.h"

#include <pybind11/stl.h>

#include "checkpoint/config.h"
#include "python/request.h"

namespace py = pybind11;

namespace deepinfer::python {
namespace {

// [(token id, log-probability, bytes), ..]
py::list top_of(const std::vector<engine::TokenLogprob>& top) {
  py::list list;
  for (const engine::TokenLogprob& t : top)
    list.append(py::make_tuple(t.token, t.logprob, py::bytes(t.bytes.data(), t.bytes.size())));
  return list;
}

py::dict answer_of(Generation& g, LLM& llm) {
  py::dict d;
  d["text"] = g.text;
  d["failed"] = !g.error.ok();
  d["error"] = g.error.ok() ? py::object(py::none()) : py::str(python_names(g.error.message()));
  d["finish_reason"] = std::string(engine::finish_reason_name(g.reason));
  d["stop_text"] = g.stop_text;
  const bool with_logprobs = !g.logprobs.empty();
  std::vector<double> logprobs;
  py::list top;
  for (size_t i = 0; i < g.logprobs.size(); ++i) {
    logprobs.push_back(g.logprobs[i].logprob);
    top.append(top_of(g.top_logprobs[i]));
  }
  d["logprobs"] = with_logprobs ? to_array(std::move(logprobs)) : py::none();
  d["top_logprobs"] = with_logprobs ? py::object(top) : py::none();
  d["logits"] = py::none();
  if (!g.logits.empty()) {
    const auto vocab = static_cast<py::ssize_t>(llm.config().vocab_size);
    const auto rows = static_cast<py::ssize_t>(g.logits.size()) / vocab;
    d["logits"] = to_array(std::move(g.logits)).attr("reshape")(rows, vocab);
  }
  d["token_ids"] = to_array(std::move(g.token_ids));
  py::dict usage, timings;
  usage["prompt_tokens"] = g.usage.prompt_tokens;
  usage["completion_tokens"] = g.usage.output_tokens;
  usage["total_tokens"] = g.usage.prompt_tokens + g.usage.output_tokens;
  usage["cached_tokens"] = g.usage.cached_tokens;
  usage["replayed_tokens"] = g.usage.replayed_tokens;
  usage["preemptions"] = g.usage.preemptions;
  timings["first_token_s"] = g.usage.first_token_s;
  timings["total_s"] = g.usage.total_s;
  d["usage"] = usage;
  d["timings"] = timings;
  return d;
}

template <class T>
void declare(py::module_& m, const char* name) {
  py::class_<Values<T>>(m, name, py::buffer_protocol()).def_buffer([](Values<T>& v) {
    return py::buffer_info(v.values.data(), static_cast<py::ssize_t>(v.values.size()));
  });
}

}  // namespace

void declare_values(py::module_& m) {
  declare<int32_t>(m, "Int32Values");
  declare<float>(m, "Float32Values");
  declare<double>(m, "Float64Values");
}

py::list results_of(std::vector<Completion> completions, LLM& llm) {
  py::list list;
  for (Completion& c : completions) {
    py::dict d;
    py::list answers, prompt_logprobs, prompt_top;
    for (Generation& g : c.answers) answers.append(answer_of(g, llm));
    for (size_t i = 0; i < c.prompt_logprobs.size(); ++i) {
      prompt_logprobs.append(i == 0 ? py::object(py::none()) : py::float_(c.prompt_logprobs[i].token.logprob));
      prompt_top.append(i == 0 ? py::object(py::none()) : py::object(top_of(c.prompt_logprobs[i].top)));
    }
    d["answers"] = answers;
    d["prompt_token_ids"] = to_array(std::move(c.prompt_ids));
    d["prompt_logprobs"] = c.prompt_logprobs.empty() ? py::object(py::none()) : py::object(prompt_logprobs);
    d["prompt_top_logprobs"] = c.prompt_logprobs.empty() ? py::object(py::none()) : py::object(prompt_top);
    list.append(d);
  }
  return list;
}

py::list chat_results_of(std::vector<ChatCompletion> completions, LLM& llm) {
  py::list list;
  for (ChatCompletion& c : completions) {
    py::dict d;
    py::list answers;
    for (ChatAnswer& a : c.answers) {
      py::dict answer = answer_of(a, llm);
      py::list calls;
      for (const recipe::ToolCall& call : a.tool_calls) calls.append(py::make_tuple(call.name, call.arguments));
      answer["reasoning"] = a.reasoning;
      answer["tool_calls"] = calls;
      answers.append(answer);
    }
    d["answers"] = answers;
    d["prompt_token_ids"] = to_array(std::move(c.prompt_ids));
    d["prompt_logprobs"] = py::none();
    d["prompt_top_logprobs"] = py::none();
    list.append(d);
  }
  return list;
}

}  // namespace deepinfer::python
