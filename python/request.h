// Python values -> what the engine is asked for (internal to python/). Wrong types and values raise ValueError and name
// the parameter.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/llm.h"

namespace deepinfer::python {

// Raises ValueError with the status's sentence; RuntimeError for a defect of this library.
void check(const Status& status);

// A sentence with the engine's names of parameters replaced by those of SamplingParams.
std::string python_names(std::string sentence);

// A str, or a sequence or array of token ids.
PromptInput prompt_of(const pybind11::handle& prompt);

// The fields of deepinfer.SamplingParams.
engine::Request request_of(LLM& llm, const pybind11::dict& fields);

}  // namespace deepinfer::python
