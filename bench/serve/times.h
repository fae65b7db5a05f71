// The time that the service adds to a request: from the bytes of a body to the engine, from a token to its bytes.
//
//   bench_serve::bench_times(options);      // reports front_* and token_*
#pragma once

#include "bench/bench.h"

namespace bench_serve {

void bench_times(const bench::Options& options);

}  // namespace bench_serve
