// The kernels of the fast CPU backend against what the processor can do: decode against the memory stream, prefill
// against oneDNN's bf16 product and the peak of VDPBF16PS. Shapes of DeepSeek-V4.1-Flash; the weights of a decode case
// exceed the caches. With AMX the peak is that of products of tiles that are never loaded.
//
// Every thread measures windows of value and ceiling in turns on parts of its own, by its own CPU clock, while the
// others do the same; a rate is the sum over the threads of the upper quartiles, since other work on the machine can
// only slow a window down.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/memory_stream.h"
#include "numeric/quantize.h"
#include "ops/cpu/fast/amx.h"
#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/kernels.h"
#ifdef DEEPINFER_BENCH_ONEDNN
#include "bench/peers/onednn_matmul.h"
#endif

namespace {

using namespace deepinfer;
using namespace deepinfer::ops;
using namespace deepinfer::ops::cpu::fast;

int g_threads = 1;

struct Rates {
  double value = 0, ceiling = 0;
};

// The upper quartile of the better one of two kinds of windows in turns.
constexpr double kBetterHalf = 0.875;

// amount: of one window of one thread. value(t, i) and ceiling(t, i) are its i-th windows on thread t.
Rates measure(double amount, int windows, const std::function<void(int, int)>& value,
              const std::function<void(int, int)>& ceiling, double ceiling_quantile = 0.75) {
  std::vector<Rates> rates(g_threads);
  std::vector<std::thread> threads;
  for (int t = 0; t < g_threads; ++t) {
    threads.emplace_back([&, t] {
      const auto timed = [&](const std::function<void(int, int)>& work, int i) {
        const double start = bench::thread_cpu_seconds();
        work(t, i);
        return amount / (bench::thread_cpu_seconds() - start);
      };
      std::vector<double> v, c;
      for (int i = 0; i < windows; ++i) {
        c.push_back(timed(ceiling, 2 * i));
        v.push_back(timed(value, 2 * i + 1));
      }
      rates[t] = {bench::quantile(v, 0.75), bench::quantile(c, ceiling_quantile)};
    });
  }
  for (std::thread& t : threads) t.join();
  Rates sum;
  for (const Rates& r : rates) {
    sum.value += r.value;
    sum.ceiling += r.ceiling;
  }
  return sum;
}

// Memory of whole huge pages where the system gives them.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_((bytes + kHuge - 1) / kHuge * kHuge) {
    void* p = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::exit((std::fprintf(stderr, "no memory for %zu bytes\n", bytes), 1));
    ::madvise(p, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(p);
  }
  ~Memory() { ::munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  std::byte* data() const { return data_; }

 private:
  static constexpr size_t kHuge = 2 << 20;
  size_t bytes_;
  std::byte* data_ = nullptr;
};

int64_t code_bytes(WeightFormat f, int64_t rows, int64_t cols) {
  return f == WeightFormat::kBf16 ? rows * cols * 2 : f == WeightFormat::kFp8 ? rows * cols : rows * cols / 2;
}
int64_t scale_bytes(WeightFormat f, int64_t rows, int64_t cols) {
  return f == WeightFormat::kBf16 ? 0 : f == WeightFormat::kFp8 ? (rows + 31) / 32 * (cols / 32) : rows * (cols / 32);
}

// Copies of one matrix, one behind the other.
struct Weights {
  Weights(WeightFormat format, int64_t rows, int64_t cols, int copies)
      : bytes(code_bytes(format, rows, cols) + scale_bytes(format, rows, cols)), memory(bytes * copies) {
    auto* p = reinterpret_cast<uint8_t*>(memory.data());
    std::mt19937_64 random(1);
    for (int64_t i = 0; i + 8 <= bytes * copies; i += 8) {
      uint64_t v = random() & 0x7f7f7f7f7f7f7f7fu & ~0x4040404040404040u;  // no NaN, moderate exponents
      __builtin_memcpy(p + i, &v, sizeof v);
    }
    for (int c = 0; c < copies; ++c) {
      std::byte *data = memory.data() + c * bytes, *scale = data + code_bytes(format, rows, cols);
      std::fill(scale, scale + scale_bytes(format, rows, cols), std::byte{120});
      matrices.push_back({format, rows, cols, data, scale});
    }
  }
  int64_t bytes;
  Memory memory;
  std::vector<Matrix> matrices;
};

struct Activations {
  Activations(const Kernels& k, const Matrix& w, int64_t n)
      : memory(n * packed_columns(w.cols) * sizeof(uint16_t)),
        rows{reinterpret_cast<uint16_t*>(memory.data()), packed_columns(w.cols), n} {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<float> x(w.cols);
    for (int64_t i = 0; i < n; ++i) {
      for (float& v : x) v = normal(random);
      k.pack(x.data(), w.cols, order_of(w.format), w.format != WeightFormat::kBf16, rows.row(i), rows.step(i));
    }
  }
  Memory memory;
  PackedRows rows;
};

std::byte* thread_scratch(int64_t k) {
  thread_local Memory memory(multiply_scratch_bytes(k) + (4 << 20));
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  constexpr uintptr_t kHuge = 2 << 20;
  return reinterpret_cast<std::byte*>((start + kHuge - 1) & ~(kHuge - 1));
}

struct Decode {
  const char* name;
  WeightFormat format;
  int64_t rows, cols;
  int64_t n;
  std::optional<double> goal;
};

void decode(const Kernels& k, const Decode& d, const bench::Options& options) {
  constexpr int64_t kWindow = 12 << 20;  // bytes of a window; all of them together exceed the caches many times
  const int64_t one = code_bytes(d.format, d.rows, d.cols), total = options.quick ? 20 * kWindow : 480 << 20;
  const int copies = static_cast<int>(std::max<int64_t>(2, total / one)),
            in_window = static_cast<int>(std::max<int64_t>(1, kWindow / one));
  const Weights w(d.format, d.rows, d.cols, copies);
  const Activations x(k, w.matrices[0], d.n);
  const auto bytes = static_cast<size_t>(w.bytes) * in_window;
  // Windows of all threads and of value and ceiling lie apart.
  const auto first = [&](int t, int i) { return (i * g_threads + t) * in_window % (copies - in_window + 1); };
  const Rates r = measure(
      static_cast<double>(bytes), options.quick ? 16 : 60,
      [&](int t, int i) {
        thread_local std::vector<float> out;
        out.resize(d.n * d.rows);
        for (int c = 0; c < in_window; ++c)
          k.multiply({&w.matrices[first(t, i) + c], 0, d.rows, x.rows, out.data(), d.rows, true},
                     thread_scratch(d.cols));
      },
      [&](int t, int i) {
        bench::stream_read(w.memory.data() + static_cast<size_t>(w.bytes) * first(t, i), bytes, i / 2);
      },
      kBetterHalf);
  bench::report({.bench = "ops_cpu",
                 .name = d.name,
                 .value = r.value / 1e9,
                 .unit = "GB/s",
                 .ceiling = r.ceiling / 1e9,
                 .ceiling_is = "physical: memory stream, same bytes and threads",
                 .goal = d.goal,
                 .goal_is_ratio = true});
}

// Bf16 pair sums whose operands stay in the first-level cache.
constexpr int64_t kPeakRows = 6, kPeakPairs = 128, kPeakLanes = 64;
constexpr double kPeakFlops = 2.0 * kPeakRows * kPeakPairs * 2 * kPeakLanes;

void peak(const Kernels& k, double flops) {
  thread_local std::vector<uint32_t> a(kPeakRows * kPeakPairs, 0x3f803f80), b(kPeakPairs * kPeakLanes, 0x3f803f80);
  thread_local std::vector<float> c(kPeakRows * kPeakLanes);
  for (double done = 0; done < flops; done += kPeakFlops)
    k.outer({a.data(), kPeakPairs, 1, b.data(), kPeakLanes, kPeakRows, kPeakPairs, kPeakLanes, c.data(), kPeakLanes});
}

// The peak of what multiplies matrices: tiles where the table uses them.
bool uses_tiles(const Kernels& k) { return std::strcmp(k.isa, "amx") == 0; }

void matrix_peak(const Kernels& k, double flops) {
  if (!uses_tiles(k)) return peak(k, flops);
  for (double done = 0; done < flops;) done += cpu::fast::amx::run_tiles(256);
}

struct Prefill {
  const char* name;
  WeightFormat format;
  int64_t rows, cols;
  int64_t n;
  bool onednn;
  std::optional<double> goal;
};

void prefill(const Kernels& k, const Prefill& p, const bench::Options& options) {
#ifdef DEEPINFER_BENCH_ONEDNN
  std::vector<std::unique_ptr<bench::OneDnnMatmul>> peers;
  for (int t = 0; p.onednn && t < g_threads; ++t)
    peers.push_back(std::make_unique<bench::OneDnnMatmul>(p.n, p.cols, p.rows));
#else
  if (p.onednn) return;
#endif
  const Weights w(p.format, p.rows, p.cols, g_threads);
  const Activations x(k, w.matrices[0], p.n);
  const double flops = 2.0 * static_cast<double>(p.n * p.rows * p.cols);
  const Rates r = measure(
      flops, options.quick ? 8 : 20,
      [&](int t, int) {
        thread_local std::vector<float> out;
        out.resize(p.n * p.rows);
        k.multiply({&w.matrices[t], 0, p.rows, x.rows, out.data(), p.rows, true}, thread_scratch(p.cols));
      },
      [&](int t, int) {
#ifdef DEEPINFER_BENCH_ONEDNN
        if (p.onednn) return peers[t]->run();
#endif
        matrix_peak(k, flops);
        (void)t;
      });
  bench::report({.bench = "ops_cpu",
                 .name = p.name,
                 .value = r.value / 1e9,
                 .unit = "GFLOP/s",
                 .ceiling = r.ceiling / 1e9,
                 .ceiling_is = p.onednn ? "oneDNN bf16, same shape and threads"
                                        : uses_tiles(k) ? "physical: products of tiles in registers"
                                                        : "physical: bf16 pair sums from the first-level cache",
                 .goal = p.goal,
                 .goal_is_ratio = true});
}

// Attention of one row: 64 heads over a window of 128 records and 512 compressed entries, expansion of the records
// included. Each byte read meets 64 heads, so that the pair sums are the roofline.
void attention(const Kernels& k, const bench::Options& options) {
  constexpr int64_t kHeads = 64, kChannels = 512, kWindow = 128, kEntries = 512, kKeys = kWindow + kEntries;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const std::vector<float> sink(kHeads, 0.5f);
  std::vector<float> q(kHeads * kChannels), key(kChannels);
  for (float& v : q) v = numeric::round_bf16(normal(random));
  const size_t window_bytes = numeric::window_record_bytes(kChannels),
               entry_bytes = numeric::entry_record_bytes(kChannels);
  std::vector<uint8_t> window(kWindow * window_bytes), entries(kEntries * entry_bytes);
  for (int64_t i = 0; i < kKeys; ++i) {
    for (float& v : key) v = numeric::round_bf16(normal(random));
    const std::span<const float> x(key);
    if (i < kWindow) numeric::encode_window_record(x, window.data() + i * window_bytes);
    if (i >= kWindow) numeric::encode_entry_record(x, entries.data() + (i - kWindow) * entry_bytes);
  }
  const double flops = 4.0 * kHeads * kKeys * kChannels;
  const Rates r = measure(
      flops, options.quick ? 10 : 100,
      [&](int, int) {
        thread_local std::vector<uint16_t> words(kKeys * kChannels);
        thread_local std::vector<float> out(kHeads * kChannels);
        for (int64_t i = 0; i < kWindow; ++i)
          k.window_words(window.data() + i * window_bytes, kChannels, words.data() + i * kChannels);
        for (int64_t i = 0; i < kEntries; ++i)
          k.entry_words(entries.data() + i * entry_bytes, kChannels, words.data() + (kWindow + i) * kChannels);
        attend_heads(k, {q.data(), kHeads, kChannels, words.data(), kKeys, sink.data(), out.data()});
      },
      [&](int, int) { peak(k, flops); });
  bench::report({.bench = "ops_cpu",
                 .name = "attention_64_heads_640_keys",
                 .value = r.value / 1e9,
                 .unit = "GFLOP/s",
                 .ceiling = r.ceiling / 1e9,
                 .ceiling_is = "physical: bf16 pair sums from the first-level cache",
                 .goal = 0.7,
                 .goal_is_ratio = true});
}

// Index scores of one row against many keys; the ceiling reads the keys' bytes.
void index_scores(const Kernels& k, const bench::Options& options) {
  constexpr int64_t kHeads = 32, kChannels = 128, kGroups = 4, kBytes = kChannels / 2 + kGroups;
  const int64_t keys = options.quick ? 1 << 12 : 1 << 17;
  std::mt19937 random(4);
  std::vector<uint8_t> data(keys * kBytes);
  for (uint8_t& b : data) b = static_cast<uint8_t>(random() & 0x7f);
  std::vector<int8_t> query(kHeads * kChannels);
  for (int8_t& c : query) c = static_cast<int8_t>(random() % 25) - 12;
  const std::vector<float> factors(kHeads * kGroups, 0.25f), weights(kHeads, 0.5f);
  const std::vector<int32_t> twelve(kHeads * kGroups, 96);
  const Rates r = measure(
      static_cast<double>(data.size()), options.quick ? 6 : 10,
      [&](int, int) {
        thread_local std::vector<uint8_t> panel(kChannels * kKeyLanes);
        thread_local std::vector<float> key_factors(kGroups * kKeyLanes), scores(kKeyLanes);
        for (int64_t g = 0; g < keys; g += kKeyLanes) {
          const uint8_t* p = data.data() + g * kBytes;
          k.key_panel({p, p + kKeyLanes * kChannels / 2, kChannels / 2, kGroups, kKeyLanes, kChannels, panel.data(),
                       key_factors.data()});
          k.score({panel.data(), key_factors.data(), kHeads, kChannels, query.data(), factors.data(), twelve.data(),
                   weights.data(), scores.data()});
        }
      },
      [&](int, int i) { bench::stream_read(reinterpret_cast<const std::byte*>(data.data()), data.size(), i / 2); },
      kBetterHalf);
  bench::report({.bench = "ops_cpu",
                 .name = "index_scores_1_row",
                 .value = r.value / static_cast<double>(kBytes) / 1e6,
                 .unit = "Mkeys/s",
                 .ceiling = r.ceiling / static_cast<double>(kBytes) / 1e6,
                 .ceiling_is = "physical: memory stream of the keys"});
}

}  // namespace

int main(int argc, char** argv) {
  // oneDNN's OpenMP threads would spin beside ours: one each, set before its library looks.
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::execv("/proc/self/exe", argv);
  }
  const bench::Options options = bench::parse(argc, argv);
  // --isa NAME: another table than this processor's best.
  std::string isa;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--isa") == 0) isa = argv[i + 1];
  }
  const Kernels* k = choose_kernels(isa.c_str());
  if (k == nullptr)
    return std::fprintf(stderr, "this processor lacks the instructions (at least AVX2) to measure\n"), 1;
  g_threads = available_cores();
  constexpr auto kFp8 = WeightFormat::kFp8, kFp4 = WeightFormat::kFp4, kBf16 = WeightFormat::kBf16;
  for (const Decode& d :
       std::initializer_list<Decode>{{"decode_fp8_wq_b_1_row", kFp8, 8192, 1280, 1, 0.8},
                                     {"decode_fp8_wo_b_1_row", kFp8, 1024, 8192, 1, 0.8},
                                     {"decode_fp8_wo_b_4_rows", kFp8, 1024, 8192, 4, std::nullopt},
                                     {"decode_fp8_wo_b_16_rows", kFp8, 1024, 8192, 16, std::nullopt},
                                     {"decode_bf16_head_1_row", kBf16, 1024, 5120, 1, 0.8},
                                     {"decode_fp4_expert_up_1_row", kFp4, 2304, 5120, 1, 0.7},
                                     {"decode_fp4_expert_down_1_row", kFp4, 5120, 2304, 1, 0.7},
                                     {"decode_fp4_expert_up_4_rows", kFp4, 2304, 5120, 4, std::nullopt}})
    decode(*k, d, options);
  const int64_t n = options.quick ? 64 : 512;
  for (const Prefill& p :
       std::initializer_list<Prefill>{{"prefill_fp8_wo_b", kFp8, 1024, 8192, n, true, 0.8},
                                      {"prefill_fp8_wq_b", kFp8, 4096, 1280, n, true, 0.8},
                                      {"prefill_bf16_head", kBf16, 1024, 5120, n, true, 0.8},
                                      {"prefill_fp4_expert_up", kFp4, 1152, 5120, n, false, 0.6},
                                      {"prefill_fp4_expert_down", kFp4, 2560, 2304, n, false, 0.6},
                                      {"prefill_fp4_expert_up_48_rows", kFp4, 2304, 5120, 48, false, 0.6},
                                      {"prefill_fp4_expert_up_beside_onednn", kFp4, 1152, 5120, n, true, std::nullopt},
                                      {"prefill_fp8_wo_b_of_peak", kFp8, 1024, 8192, n, false, std::nullopt}})
    prefill(*k, p, options);
  attention(*k, options);
  index_scores(*k, options);
}
