// Answers -> Python dicts with NumPy arrays (internal to python/).
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "engine/llm.h"

namespace deepinfer::python {

// Memory that an array takes over through Python's buffer protocol. NumPy's own structs differ between its versions 1
// and 2, and pybind11 before 2.12 reads those of version 1 only: it would make arrays of wrong values with version 2.
template <class T>
struct Values {
  std::vector<T> values;
};
void declare_values(pybind11::module_& m);

template <class T>
pybind11::object to_array(std::vector<T> values) {
  return pybind11::module_::import("numpy").attr("asarray")(pybind11::cast(Values<T>{std::move(values)}));
}

// One dict a prompt, with its answers as dicts.
pybind11::list results_of(std::vector<Completion> completions, LLM& llm);
pybind11::list chat_results_of(std::vector<ChatCompletion> completions, LLM& llm);

}  // namespace deepinfer::python
