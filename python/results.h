// Answers -> Python dicts with NumPy arrays (internal to python/).
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <vector>

#include "engine/llm.h"

namespace deepinfer::python {

// Hands the vector's memory over to the array.
template <class T>
pybind11::array_t<T> to_array(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  const pybind11::capsule owner(owned, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(owned->size()), owned->data(), owner);
}

// One dict a prompt, with its answers as dicts.
pybind11::list results_of(std::vector<Completion> completions, LLM& llm);
pybind11::list chat_results_of(std::vector<ChatCompletion> completions, LLM& llm);

}  // namespace deepinfer::python
