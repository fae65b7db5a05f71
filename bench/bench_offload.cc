// Decode with most weights on the SSD: bytes of experts that tokens need, a second, beside what the device gives for
// random reads of 128 KiB in the same run. The checkpoint has the real width and few layers; every byte of it is
// written. Full form: 21.6 GB under a budget of 2 GiB, in a memory control group of that size where the system allows
// one. DEEPINFER_BENCH_DIR names a folder on the disk to measure (default: the temporary folder).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/must.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/engram_hash.h"
#include "checkpoint/random_checkpoint.h"
#include "checkpoint/random_tensor.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store/predict.h"
#include "checkpoint/store/weight_store.h"
#include "engine/weights.h"
#include "model/sequence.h"
#include "ops/cpu/cpu_ops.h"

namespace {

using namespace deepinfer;
using bench::must;
namespace fs = std::filesystem;

constexpr uint64_t kRam = uint64_t{2} << 30;

// Three layers of the official shape, one of each kind, with a small vocabulary; the quick form is narrow as well.
checkpoint::ModelConfig shape(bool quick) {
  checkpoint::ModelConfig c = checkpoint::official_config();
  c.vocab_size = 8192;
  c.image_token_id = 8186;
  c.num_hidden_layers = 3;
  c.compress_ratios = {0, 2, 1};
  c.kv_source_layer_ids = {1, 2};
  c.index_source_layer_ids = {1, 2};
  c.candidate_source_layer_id = 2;
  if (quick) {
    c.hidden_size = 1024;
    c.moe_intermediate_size = 512;
    c.num_attention_heads = 16;
    c.q_lora_rank = 256;
    c.o_groups = 4;
    c.o_lora_rank = 256;
    c.n_routed_experts = 64;
  }
  c.max_position_embeddings = 65536;
  c.engram_layer_ids = {1};
  c.engram_vocab_size = quick ? 2000 : 100000;
  c.engram_compressed_vocab_size = 4096;
  c.engram_num_embeddings.clear();
  for (const auto& primes :
       checkpoint::engram_primes(1, c.engram_max_ngram_size - 1, c.engram_n_heads, c.engram_vocab_size)) {
    c.engram_num_embeddings.push_back(std::accumulate(primes.begin(), primes.end(), int64_t{0}));
  }
  c.num_nextn_predict_layers = 0;
  c.dspark_target_layer_ids.clear();
  c.dspark_noise_token_id = 9;
  must(c.complete());
  return c;
}

class Folder {
 public:
  Folder() {
    const char* base = std::getenv("DEEPINFER_BENCH_DIR");
    std::string name = (base != nullptr ? fs::path(base) : fs::temp_directory_path()) / "deepinfer-offload-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) must(Status(Code::kIo, "cannot make a folder for the checkpoint"));
    path_ = name;
  }
  ~Folder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  std::string model() const { return path_ + "/model"; }

 private:
  std::string path_;
};

void write_all(int fd, const std::byte* data, uint64_t bytes, uint64_t at) {
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, data, bytes, static_cast<off_t>(at));
    if (n <= 0) must(Status(Code::kIo, "cannot write the checkpoint; is the disk full?"));
    data += n;
    at += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
}

// Every byte of the files: dense tensors at random, experts from a few random ones, turned so that no two are equal.
void fill(const checkpoint::Checkpoint& c) {
  std::vector<int> fds;
  for (const checkpoint::SafetensorsFile& f : c.files()) fds.push_back(::open(f.path().c_str(), O_WRONLY | O_CLOEXEC));
  struct Bytes {
    std::vector<std::byte> data, scales;
  };
  std::vector<Bytes> pool(6);
  uint64_t number = 0;
  for (const checkpoint::TensorSpec& spec : c.specs()) {
    const checkpoint::RandomTensor t(7, spec);
    const bool expert = spec.group == checkpoint::Group::kRoutedExperts;
    Bytes own;
    Bytes& b = expert ? pool[number % pool.size()] : own;
    if (b.data.empty()) {
      b.data.resize(static_cast<uint64_t>(t.rows()) * t.row_bytes());
      b.scales.resize(t.scale_bytes());
      t.fill(0, t.rows(), b.data.data(), b.scales.data());
    }
    const auto place = c.file_range(spec.name);
    const uint64_t turn = expert ? number * 4096 % b.data.size() : 0;
    write_all(fds[place.file], b.data.data() + turn, b.data.size() - turn, place.offset);
    write_all(fds[place.file], b.data.data(), turn, place.offset + b.data.size() - turn);
    if (!b.scales.empty()) {
      const auto scales = c.file_range(checkpoint::scale_name(spec.name));
      write_all(fds[scales.file], b.scales.data(), b.scales.size(), scales.offset);
    }
    number += expert;
  }
  for (int fd : fds) {
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

// A control group below this process's own; joined if `limit` can be set.
class MemoryGroup {
 public:
  explicit MemoryGroup(uint64_t limit) {
    std::ifstream in("/proc/self/cgroup");
    for (std::string line; std::getline(in, line);) {
      const size_t a = line.find(':'), b = line.find(':', a + 1);
      const std::string controllers = line.substr(a + 1, b - a - 1), path = line.substr(b + 1);
      if (controllers == "memory") try_join("/sys/fs/cgroup/memory" + path, "memory.limit_in_bytes", limit);
      if (controllers.empty()) try_join("/sys/fs/cgroup" + path, "memory.max", limit);
    }
  }
  ~MemoryGroup() {
    if (path_.empty()) return;
    write(parent_ + "/cgroup.procs", std::to_string(::getpid()));
    ::rmdir(path_.c_str());
  }
  bool joined() const { return !path_.empty(); }
  double peak() const {
    double bytes = 0;
    for (const char* name : {"/memory.max_usage_in_bytes", "/memory.peak"}) {
      if (std::ifstream in(path_ + name); in >> bytes) break;
    }
    return bytes;
  }

 private:
  static bool write(const std::string& file, const std::string& text) {
    std::ofstream out(file);
    return static_cast<bool>(out << text << std::flush);
  }
  void try_join(const std::string& parent, const char* limit_file, uint64_t limit) {
    if (joined()) return;
    const std::string path = parent + "/deepinfer-offload-" + std::to_string(::getpid());
    if (::mkdir(path.c_str(), 0755) != 0) return;
    if (write(path + "/" + limit_file, std::to_string(limit)) &&
        write(path + "/cgroup.procs", std::to_string(::getpid()))) {
      path_ = path;
      parent_ = parent;
    } else {
      ::rmdir(path.c_str());
    }
  }
  std::string path_, parent_;
};

// Bytes a second that the store reads where nothing is computed: experts at random, a layer's while those of the one
// before are awaited. What steps need cannot come faster. Slots are in no cache when the disk writes them, as the one
// small buffer of the disk's measurement is.
double store_alone(const checkpoint::ModelConfig& c, checkpoint::WeightStore& store, int tokens) {
  std::mt19937 random(11);
  std::vector<int32_t> all(static_cast<size_t>(c.n_routed_experts));
  std::iota(all.begin(), all.end(), 0);
  const auto draw = [&] {
    std::vector<int32_t> ids;
    std::sample(all.begin(), all.end(), std::back_inserter(ids), c.num_experts_per_tok, random);
    return ids;
  };
  const uint64_t before = store.stats().bytes_read;
  const double begin = bench::wall_seconds();
  const auto layers = static_cast<int>(c.num_hidden_layers);
  std::vector<int32_t> ids = draw();
  for (int l = 0; l < tokens * layers; ++l) {
    store.experts().begin(l % layers, ids);
    ids = draw();
    store.experts().expect((l + 1) % layers, ids);
    while (!store.experts().next().empty()) {
    }
  }
  store.experts().settle();
  return static_cast<double>(store.stats().bytes_read - before) / (bench::wall_seconds() - begin);
}

void run(bool quick) {
  const checkpoint::ModelConfig config = shape(quick);
  const Folder folder;
  must(checkpoint::write_random_checkpoint(config, folder.model(), {.zeros = true}));
  {
    const checkpoint::Checkpoint c = must(checkpoint::Checkpoint::open(folder.model()));
    fill(c);
  }
  auto c = std::make_shared<const checkpoint::Checkpoint>(must(checkpoint::Checkpoint::open(folder.model())));
  const int threads = available_cores();
  const double memory = must(checkpoint::measure_memory(threads));
  const MemoryGroup group(kRam);
  std::unique_ptr<ops::Ops> ops = ops::make_cpu_ops(threads);
  model::Options o;
  o.limits.rows_max = 8;
  o.limits.context_max = 512;
  o.pages = ops::KvLayout::pages_for(512);
  const uint64_t work = ops->workspace_bytes(config, o.limits) + (uint64_t{64} << 20);
  if (quick) {
    checkpoint::WeightStore::Options small{.ram_bytes = checkpoint::least_store_bytes(config) + (uint64_t{30} << 20)};
    o.store = must(checkpoint::WeightStore::open(*c, small));
  } else {
    o.store = must(engine::open_weights(*c, *ops, kRam, work));
  }
  checkpoint::WeightStore& store = *o.store;
  const std::unique_ptr<model::Model> m = must(model::Model::create(c, std::move(ops), o));
  model::KvAllocator kv(o.pages, 1);
  model::Sequence s = must(model::Sequence::create(*m, kv));
  std::mt19937 random(3);
  std::vector<float> logits;
  const auto decode = [&](int tokens) {
    for (int i = 0; i < tokens; ++i) {
      const auto token = static_cast<int32_t>(3 + random() % 8000);
      must(s.append({&token, 1}, 1, &logits));
    }
  };
  store.experts().settle();
  decode(quick ? 2 : 10);
  const int turns = quick ? 2 : 12, tokens = quick ? 3 : 12;
  std::vector<double> rates, decoded, read, seconds_a_token;
  const checkpoint::StoreStats before = store.stats();
  double wait = 0;
  const auto disk_now = [&] { return must(checkpoint::measure_disk(*c, quick ? 0.5 : 2.0)); };
  rates.push_back(disk_now().disk_bytes_per_s);
  for (int turn = 0; turn < turns; ++turn) {
    const checkpoint::StoreStats a = store.stats();
    const double begin = bench::wall_seconds();
    decode(tokens);
    store.experts().settle();  // the next turn may use what was guessed in this one, so its time counts here
    const double seconds = bench::wall_seconds() - begin;
    const checkpoint::StoreStats b = store.stats();
    decoded.push_back(static_cast<double>(b.experts.needed_bytes - a.experts.needed_bytes) / seconds);
    read.push_back(static_cast<double>(b.bytes_read - a.bytes_read) / seconds);
    seconds_a_token.push_back(seconds / tokens);
    wait += b.experts.wait_s - a.experts.wait_s;
    rates.push_back(disk_now().disk_bytes_per_s);
  }
  const checkpoint::StoreStats after = store.stats();
  const auto share = [](uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  // Before and after every turn, as disks of virtual machines change their rates within seconds; of both the median.
  const double disk = bench::median(rates), measured = 1 / bench::median(seconds_a_token);
  const auto line = [](const char* name, double value, const char* unit) {
    return bench::Line{.bench = "offload", .name = name, .value = value, .unit = unit};
  };
  bench::Line ssd = line("ssd_bound_decode", bench::median(decoded) / 1e9, "GB/s");
  ssd.ceiling = disk / 1e9;
  ssd.ceiling_is = "physical: random reads of 128 KiB, 64 at once";
  bench::Line all = line("ssd_bound_reads", bench::median(read) / 1e9, "GB/s");  // with wrong guesses
  all.ceiling = ssd.ceiling;
  all.ceiling_is = ssd.ceiling_is;
  bench::Line alone = line("store_alone", store_alone(config, store, quick ? 3 : 24) / 1e9, "GB/s");
  alone.ceiling = ssd.ceiling;
  alone.ceiling_is = ssd.ceiling_is;
  ssd.goal = 0.85;
  ssd.goal_is_ratio = true;
  bench::report(ssd);
  bench::report(all);
  bench::report(alone);
  bench::report(line("decode", measured, "tokens/s"));
  bench::report(line(
      "hit_rate", share(after.experts.hits - before.experts.hits, after.experts.uses - before.experts.uses), "ratio"));
  bench::report(line("guesses_used",
                     share(after.experts.expected_used - before.experts.expected_used,
                           after.experts.expected_reads - before.experts.expected_reads),
                     "ratio"));
  bench::report(line(
      "guesses_a_token",
      static_cast<double>(after.experts.expected_reads - before.experts.expected_reads) / (turns * tokens), "experts"));
  bench::report(line("waiting_for_experts", wait / (turns * tokens) * measured, "ratio"));
  checkpoint::StoreRates r = disk_now();
  r.memory_bytes_per_s = memory;
  bench::Line predicted =
      line("predicted_decode", checkpoint::predict_decode(config, store.plan(), r).tokens_per_s, "tokens/s");
  predicted.ceiling = measured;
  predicted.ceiling_is = "measured decode";
  bench::report(predicted);
  bench::Line peak = line("peak_memory_of_budget", group.joined() ? group.peak() / 1e9 : 0, "GB");
  peak.ceiling = kRam / 1e9;
  peak.ceiling_is = group.joined() ? "memory control group" : "no control group could be made";
  bench::report(peak);
}

}  // namespace

int main(int argc, char** argv) {
  run(bench::parse(argc, argv).quick);
  return 0;
}
