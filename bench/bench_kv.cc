// The stores of computed prompts beside what carries them: memory, disk, wire, Redis; and prompts of which 96% are
// cached beside cold ones. Names as arguments run only those parts: memory ssd redis kvstore rados
// prefill-4k prefill-32k.
#include <algorithm>
#include <string_view>

#include "bench/kv/cases.h"

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  const bool all = std::ranges::all_of(words, [](std::string_view w) { return w.starts_with("--"); });
  const auto run = [&](std::string_view name, void (*part)(bool quick)) {
    if (all || std::ranges::find(words, name) != words.end()) part(options.quick);
  };
  run("memory", &bench::kv::host_memory);
  run("ssd", &bench::kv::ssd);
  run("redis", &bench::kv::redis);
  run("kvstore", &bench::kv::kvstore);
  run("rados", &bench::kv::rados);
  run("prefill-4k", &bench::kv::prefill_4k);
  run("prefill-32k", &bench::kv::prefill_32k);
}
