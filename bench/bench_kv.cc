// The stores of computed prompts beside what carries them: memory, disk, wire, Redis; and prompts of which 96% are
// cached beside cold ones.
#include "bench/kv/cases.h"

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  bench::kv::host_memory(options.quick);
  bench::kv::ssd(options.quick);
  bench::kv::redis(options.quick);
  bench::kv::prefill(options.quick);
}
