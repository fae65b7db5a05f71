#include "python/request.h"

#include <algorithm>
#include <limits>

#include <pybind11/stl.h>

namespace py = pybind11;

namespace deepinfer::python {
namespace {

[[noreturn]] void wrong_type(std::string_view name, std::string_view wanted, const py::handle& value) {
  throw py::value_error(fmt::format("{} must be {}, not {}.", name, wanted,
                                    py::str(py::type::handle_of(value).attr("__name__")).cast<std::string>()));
}

int64_t integer_of(std::string_view name, const py::handle& value) {
  // bool is a kind of int in Python, and NumPy's integers are not.
  const bool integer = !py::isinstance<py::bool_>(value) && PyIndex_Check(value.ptr()) != 0;
  if (!integer) wrong_type(name, "a whole number", value);
  int overflow = 0;
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) {  // an array of several numbers
    PyErr_Clear();
    wrong_type(name, "a whole number", value);
  }
  const int64_t n = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) return overflow > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
  return n;
}

// Values beyond 32 bits become the nearest that fits, which is out of every range as well.
int32_t small_integer_of(std::string_view name, const py::handle& value) {
  return static_cast<int32_t>(std::clamp<int64_t>(integer_of(name, value), INT32_MIN, INT32_MAX));
}

double number_of(std::string_view name, const py::handle& value) {
  if (py::isinstance<py::bool_>(value) || PyNumber_Check(value.ptr()) == 0 || py::isinstance<py::str>(value)) {
    wrong_type(name, "a number", value);
  }
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Float(value.ptr()));
  if (!number) {
    PyErr_Clear();
    wrong_type(name, "a number", value);
  }
  return PyFloat_AsDouble(number.ptr());
}

bool is_list(const py::handle& value) {
  if (py::isinstance<py::str>(value) || py::isinstance<py::bytes>(value)) return false;
  if (!py::isinstance<py::sequence>(value) && !py::hasattr(value, "__array__")) return false;
  const bool has_length = PyObject_Length(value.ptr()) >= 0;  // an array without dimensions has none
  PyErr_Clear();
  return has_length;
}

std::vector<int32_t> ids_of(std::string_view name, const py::handle& value) {
  std::vector<int32_t> ids;
  if (!is_list(value)) wrong_type(name, "a list of token ids", value);
  for (const py::handle& item : value) {
    if (PyIndex_Check(item.ptr()) == 0) wrong_type(name, "a list of token ids", item);
    ids.push_back(small_integer_of(name, item));
  }
  return ids;
}

uint64_t seed_of(const py::handle& value) {
  if (PyIndex_Check(value.ptr()) == 0 || py::isinstance<py::bool_>(value))
    wrong_type("seq_seed", "a whole number", value);
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) {
    PyErr_Clear();
    wrong_type("seq_seed", "a whole number", value);
  }
  const uint64_t seed = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw py::value_error("seq_seed must be between 0 and 18446744073709551615.");
  }
  return seed;
}

std::string text_of(std::string_view name, const py::handle& value) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (data != nullptr) return std::string(data, static_cast<size_t>(size));
  PyErr_Clear();
  throw py::value_error(fmt::format("{} holds a lone surrogate, which is no character.", name));
}

std::vector<std::string> texts_of(std::string_view name, const py::handle& value) {
  if (py::isinstance<py::str>(value)) return {text_of(name, value)};
  std::vector<std::string> texts;
  if (!py::isinstance<py::sequence>(value)) wrong_type(name, "a text or a list of texts", value);
  for (const py::handle& item : value) {
    if (!py::isinstance<py::str>(item)) wrong_type(name, "a text or a list of texts", item);
    texts.push_back(text_of(name, item));
  }
  return texts;
}

std::vector<ops::LogitBias> bias_of(const py::handle& value) {
  if (!py::isinstance<py::dict>(value)) wrong_type("logit_bias", "a dict of token ids and numbers", value);
  std::vector<ops::LogitBias> bias;
  for (const auto& [token, amount] : value.cast<py::dict>()) {
    bias.push_back({small_integer_of("logit_bias", token), static_cast<float>(number_of("logit_bias", amount))});
  }
  return bias;
}

// The fields that are there and not None.
class Fields {
 public:
  explicit Fields(const py::dict& fields) : fields_(fields) {}
  bool has(const char* name) const { return fields_.contains(name) && !fields_[name].is_none(); }
  py::object at(const char* name) const { return fields_[name]; }

  void read(const char* name, int32_t* out) const {
    if (has(name)) *out = small_integer_of(name, at(name));
  }
  void read(const char* name, double* out) const {
    if (has(name)) *out = number_of(name, at(name));
  }
  void read(const char* name, float* out) const {
    if (has(name)) *out = static_cast<float>(number_of(name, at(name)));
  }
  void read(const char* name, bool* out) const {
    if (!has(name)) return;
    if (!py::isinstance<py::bool_>(at(name))) wrong_type(name, "True or False", at(name));
    *out = at(name).cast<bool>();
  }
  void read(const char* name, std::vector<int32_t>* out) const {
    if (has(name)) *out = ids_of(name, at(name));
  }

 private:
  const py::dict& fields_;
};

}  // namespace

void check(const Status& status) {
  if (status.ok()) return;
  if (status.code() == Code::kInternal) throw std::runtime_error(status.message());
  throw py::value_error(python_names(status.message()));
}

std::string python_names(std::string sentence) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"forced_tokens", "golden_token_ids"}, {"allowed_tokens", "allowed_token_ids"},
      {"stop_tokens", "stop_token_ids"},     {"grammar_after", "trigger_token_ids"},
      {"grammar_bound", "bound_token_id"},   {"timeout_s", "timeout"}};
  for (const auto& [engine, python] : kNames) {
    if (const size_t at = sentence.find(engine); at != std::string::npos) sentence.replace(at, engine.size(), python);
  }
  return sentence;
}

PromptInput prompt_of(const py::handle& prompt) {
  if (py::isinstance<py::str>(prompt)) return PromptInput(text_of("A prompt", prompt));
  if (!is_list(prompt)) wrong_type("A prompt", "a str or a list of token ids", prompt);
  return PromptInput(ids_of("A prompt", prompt));
}

engine::Request request_of(LLM& llm, const py::dict& dict) {
  const Fields fields(dict);
  engine::Request r;
  ops::SamplingParams& s = r.sampling;
  fields.read("temperature", &s.temperature);
  fields.read("top_p", &s.top_p);
  fields.read("top_k", &s.top_k);
  fields.read("min_p", &s.min_p);
  fields.read("repetition_penalty", &s.repetition_penalty);
  fields.read("frequency_penalty", &s.frequency_penalty);
  fields.read("presence_penalty", &s.presence_penalty);
  if (fields.has("logit_bias")) s.logit_bias = bias_of(fields.at("logit_bias"));
  if (s.greedy()) {  // spec/deepinfer.md T4
    s.top_p = 1;
    s.top_k = -1;
  }
  fields.read("n", &r.n);
  fields.read("max_tokens", &r.max_tokens);
  r.max_tokens = r.max_tokens == 0 ? 1 : r.max_tokens;  // T4
  fields.read("min_tokens", &r.min_tokens);
  int32_t first_without_end = 0;
  fields.read("first_n_token_no_eos", &first_without_end);
  if (first_without_end < 0)
    throw py::value_error(fmt::format("first_n_token_no_eos is {}; it must be 0 or more.", first_without_end));
  r.min_tokens = std::max(r.min_tokens, first_without_end);
  fields.read("ignore_eos", &r.ignore_end);
  fields.read("stop_token_ids", &r.stop_tokens);
  if (fields.has("stop")) r.stop = texts_of("stop", fields.at("stop"));
  fields.read("allowed_token_ids", &r.allowed_tokens);
  if (fields.has("allowed_token_ids") && r.allowed_tokens.empty()) throw py::value_error("allowed_token_ids is empty.");
  fields.read("golden_token_ids", &r.forced_tokens);
  fields.read("logprobs", &r.logprobs);
  fields.read("top_logprobs", &r.top_logprobs);
  fields.read("prompt_logprobs", &r.prompt_logprobs);
  bool raw = false;
  fields.read("raw_logprobs", &raw);
  r.logprobs |= r.top_logprobs > 0;
  r.processed_logprobs = r.logprobs && !raw;
  fields.read("full_prefill", &r.full_prefill);
  fields.read("priority", &r.priority);
  fields.read("timeout", &r.timeout_s);
  if (fields.has("seq_seed")) r.seed = seed_of(fields.at("seq_seed"));
  r.text = llm.has_tokenizer();
  if (fields.has("so_args")) {
    const std::string json = py::module_::import("json").attr("dumps")(fields.at("so_args")).cast<std::string>();
    check(llm.constrain_so_args(json, &r));
  }
  return r;
}

}  // namespace deepinfer::python
