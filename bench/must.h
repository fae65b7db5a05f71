// What cannot be done ends a benchmark with its sentence: a figure of half a run would be worse than none.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/status.h"

namespace bench {

inline void must(const deepinfer::Status& s) {
  if (!s.ok()) std::exit((std::fprintf(stderr, "%s\n", s.to_string().c_str()), 1));
}

template <class T>
T must(deepinfer::Result<T> r) {
  must(r.status());
  return std::move(r).value();
}

}  // namespace bench
