// What every benchmark shares: thread CPU time, medians, and the result line that ./bench.sh reads.
//
//   bench::Options options = bench::parse(argc, argv);
//   std::vector<double> seconds = ...;
//   bench::report({.bench = "tokenizer", .name = "english_cold", .value = mb / bench::median(seconds), .unit = "MB/s",
//                  .ceiling = peer, .ceiling_is = "Hugging Face tokenizers", .goal = 100, .higher_is_better = true});
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace bench {

struct Options {
  bool quick = false;  // a short run that only shows that it works
};

inline Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) o.quick |= std::strcmp(argv[i], "--quick") == 0;
  return o;
}

inline double clock_seconds(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
inline double thread_cpu_seconds() { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }
inline double process_cpu_seconds() { return clock_seconds(CLOCK_PROCESS_CPUTIME_ID); }
inline double wall_seconds() { return clock_seconds(CLOCK_MONOTONIC); }

// p in [0, 1]; 0.5 is the median. Empty input gives 0.
inline double quantile(std::vector<double> v, double p) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[static_cast<size_t>(p * static_cast<double>(v.size() - 1) + 0.5)];
}
inline double median(std::vector<double> v) { return quantile(std::move(v), 0.5); }

struct Line {
  std::string bench, name;
  double value = 0;
  std::string unit;
  std::optional<double> ceiling;   // measured in the same run
  std::string ceiling_is;          // "physical: memory stream", "Hugging Face tokenizers", ...
  std::optional<double> goal;      // compared with the ratio if goal_is_ratio, else with the value
  bool goal_is_ratio = false;
  bool higher_is_better = true;
};

inline std::string machine() {
  std::string model = "unknown";
  if (std::FILE* f = std::fopen("/proc/cpuinfo", "r")) {
    char line[512];
    while (std::fgets(line, sizeof line, f) != nullptr) {
      if (std::strncmp(line, "model name", 10) != 0) continue;
      const char* colon = std::strchr(line, ':');
      model = colon == nullptr ? model : std::string(colon + 2, std::strcspn(colon + 2, "\n"));
      break;
    }
    std::fclose(f);
  }
  return fmt::format("{}, {} cores", model, std::thread::hardware_concurrency());
}

inline std::string json_number(std::optional<double> x) { return x ? fmt::format("{:.6g}", *x) : "null"; }

inline void report(const Line& l) {
  const std::optional<double> ratio =
      l.ceiling && *l.ceiling > 0 ? std::optional<double>(l.value / *l.ceiling) : std::nullopt;
  std::string met = "null";
  if (l.goal && (!l.goal_is_ratio || ratio)) {
    const double x = l.goal_is_ratio ? *ratio : l.value;
    met = (l.higher_is_better ? x >= *l.goal : x <= *l.goal) ? "true" : "false";
  }
  fmt::print(
      R"({{"bench":"{}","case":"{}","value":{:.6g},"unit":"{}","ceiling":{},"ceiling_is":{},"ratio":{},"goal":{},"met":{},"machine":"{}"}})"
      "\n",
      l.bench, l.name, l.value, l.unit, json_number(l.ceiling),
      l.ceiling_is.empty() ? "null" : fmt::format("\"{}\"", l.ceiling_is), json_number(ratio), json_number(l.goal), met,
      machine());
  std::fflush(stdout);
}

}  // namespace bench
