// One row's experts in one kernel (experts_few.h): bit-equal to linear_grouped(), SwiGLU and linear_grouped(), which
// linear_test compares with sums on the CPU. At the full width and at small ones, K in quarters and whole.
// --short: fewer routings at the full width, for a sanitizer.
#include <algorithm>
#include <cstring>
#include <string>

#include "ops/cuda/experts_few.h"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/swiglu.cuh"
#include "tests/cuda/check.h"

using namespace deepinfer::ops::cuda;
using deepinfer::ops::WeightFormat;

namespace {

constexpr int kExperts = 12, kChoicesMax = 8;
constexpr float kLimit = 7.0f;

// Random bytes under a mask, from `low` on.
__global__ void fill_kernel(uint8_t* p, size_t n, uint32_t seed, uint8_t mask, uint8_t low) {
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint32_t z = static_cast<uint32_t>(i) * 2654435761u + seed * 40503u;
    z = (z ^ (z >> 15)) * 2246822519u;
    z = (z ^ (z >> 13)) * 3266489917u;
    p[i] = static_cast<uint8_t>(low + ((z ^ z >> 16) & mask));
  }
}
void fill(uint8_t* p, size_t n, uint32_t seed, uint8_t mask, uint8_t low) {
  fill_kernel<<<1024, 256>>>(p, n, seed, mask, low);
  CUDA_OK(cudaGetLastError());
}

// hidden[8 t] of tile t from gate and up, packed; a block a tile, a warp a chunk.
__global__ void hidden_kernel(const bf16* gate_up, int inter, const float* weights, const int32_t* pairs,
                              WeightFormat format, uint8_t* packed) {
  const int row = 8 * blockIdx.x, chunks = inter / kChunk, lane = threadIdx.x % 32;
  const float weight = weights != nullptr ? weights[pairs[row]] : 1.0f;
  for (int chunk = threadIdx.x / 32; chunk < chunks; chunk += blockDim.x / 32) {
    const bf16* gate = gate_up + static_cast<int64_t>(row) * 2 * inter + chunk * kChunk + 4 * lane;
    bf16 h[4];
    for (int e = 0; e < 4; ++e) h[e] = rounded(swiglu(value(gate[e]), value(gate[inter + e]), kLimit) * weight);
    uint2 u;
    memcpy(&u, h, sizeof u);
    pack_chunk(u, {format, true}, packed, row, chunks, chunk);
  }
}

struct Fp4 {
  check::Device<uint8_t> tiles;
  LinearWeights w;

  Fp4(int n, int k, uint32_t seed, uint8_t scale_low, uint8_t scale_mask)
      : tiles(arranged_fp4_bytes(n, k) * kExperts), w{tiles.p, nullptr, n, k, WeightFormat::kFp4} {
    const size_t codes = static_cast<size_t>(n) * k / 2, scales = static_cast<size_t>(n) * k / 32;
    check::Device<uint8_t> c(codes), s(scales);
    w.codes_stride = static_cast<int64_t>(arranged_fp4_bytes(n, k));
    for (int e = 0; e < kExperts; ++e) {
      fill(c.p, codes, seed + 2 * static_cast<uint32_t>(e), 0xff, 0);
      fill(s.p, scales, seed + 2 * static_cast<uint32_t>(e) + 1, scale_mask, scale_low);
      arrange_fp4(c.p, s.p, n, k, tiles.p + e * w.codes_stride, nullptr);
    }
    CUDA_OK(cudaDeviceSynchronize());
  }
};

struct Routing {
  std::vector<int32_t> ids;
  int mine = kExperts;
  bool slots = false, shared = true;
};

// Matrices of one shape, and both ways through them.
class Width {
 public:
  Width(int d, int inter, uint8_t scale_low, uint8_t scale_mask)
      : d_(d), inter_(inter), w1_w3_(2 * inter, d, 1, scale_low, scale_mask), w2_(d, inter, 99, scale_low, scale_mask),
        shared_codes_(static_cast<size_t>(d) * inter), shared_scales_(static_cast<size_t>(d / 32) * (inter / 32)),
        x_(static_cast<size_t>(d) * 2), packed_(packed_bytes(8, d)), shared_hidden_(packed_bytes(8, inter)),
        hidden_(packed_bytes(8 * kChoicesMax, inter)), gate_up_(size_t{16} * kChoicesMax * 2 * inter),
        out_(size_t{2} * kChoicesMax * d), shared_out_(size_t{2} * d), progress_(kFewChoices + 1),
        ids_(kChoicesMax), slot_of_(kExperts), x_rows_(8 * kChoicesMax), pairs_(8 * kChoicesMax), count_(1),
        weights_(kChoicesMax), tiles_(kChoicesMax) {
    CHECK(fits_few_experts(w1_w3_.w, w2_.w, kChoicesMax), "a width of %d x %d is not taken", d, inter);
    fill(shared_codes_.p, shared_codes_.n, 5, 0xbf, 0);  // below 2
    fill(shared_scales_.p, shared_scales_.n, 6, 3, 118);
    arrange_fp8(shared_codes_.p, shared_codes_.n, nullptr);
    CUDA_OK(cudaMemset(progress_.p, 0, 4 * progress_.n));
    // The shared expert's hidden vector: some packed row.
    std::vector<uint16_t> h(static_cast<size_t>(inter));
    check::Random random(3);
    for (uint16_t& v : h) v = bits(static_cast<float>(random.normal()));
    check::Device<uint16_t> hidden(h);
    pack_activations(hidden.p, 1, inter, packing_of(WeightFormat::kFp8, 1), nullptr, shared_hidden_.p, nullptr);
    CUDA_OK(cudaDeviceSynchronize());
  }

  void compare(const Routing& r, uint64_t seed, float size, const char* what) {
    input(r, seed, size);
    const std::vector<uint8_t> expected = separate(r);
    const std::vector<uint8_t> expected_shared = r.shared ? shared_out_.get() : std::vector<uint8_t>();
    for (int turn = 0; turn < 2; ++turn) {  // the second finds what the first left behind
      out_.poison(), shared_out_.poison(), hidden_.poison();
      FewExperts e{};
      e.w1_w3 = w1_w3_.w, e.w2 = w2_.w;
      e.packed = packed_.p, e.weights = weights_.p, e.limit = kLimit;
      e.ids = ids_.p, e.choices = static_cast<int>(r.ids.size()), e.mine = r.mine;
      e.slot_of = r.slots ? slot_of_.p : nullptr;
      e.hidden = hidden_.p, e.out = out_.p, e.progress = progress_.p;
      if (r.shared) e.shared = {shared(), shared_hidden_.p, shared_out_.p};
      few_experts(e, nullptr);
      CUDA_OK(cudaGetLastError());
      CUDA_OK(cudaDeviceSynchronize());
      const std::vector<uint8_t> got = out_.get();
      size_t wrong = 0;
      for (size_t i = 0; i < got.size(); ++i) wrong += got[i] != expected[i];
      CHECK(wrong == 0, "%d x %d, %s, turn %d: %zu of %zu bytes differ", d_, inter_, what, turn, wrong, got.size());
      if (r.shared)
        CHECK(shared_out_.get() == expected_shared, "%d x %d, %s, turn %d: the shared expert differs", d_, inter_, what,
              turn);
      const std::vector<int32_t> left = progress_.get();
      CHECK(std::all_of(left.begin(), left.end(), [](int32_t v) { return v == 0; }), "%s: progress is left", what);
    }
  }

 private:
  static uint16_t bits(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  LinearWeights shared() const { return {shared_codes_.p, shared_scales_.p, d_, inter_, WeightFormat::kFp8}; }

  void input(const Routing& r, uint64_t seed, float size) {
    check::Random random(seed);
    std::vector<uint16_t> x(static_cast<size_t>(d_));
    for (uint16_t& v : x) v = bits(static_cast<float>(random.normal()) * size);
    CUDA_OK(cudaMemcpy(x_.p, x.data(), 2 * x.size(), cudaMemcpyHostToDevice));
    pack_activations(x_.p, 1, d_, packing_of(WeightFormat::kFp4, 1), nullptr, packed_.p, nullptr);
    std::vector<int32_t> ids(kChoicesMax, -1), slots(kExperts);
    std::vector<float> weights(kChoicesMax);
    std::copy(r.ids.begin(), r.ids.end(), ids.begin());
    for (int e = 0; e < kExperts; ++e) slots[static_cast<size_t>(e)] = (7 * e + 3) % kExperts;
    for (float& w : weights) w = static_cast<float>(random.uniform()) + 0.01f;
    ids_.set(ids), slot_of_.set(slots), weights_.set(weights);
  }

  // By the kernels of many rows.
  std::vector<uint8_t> separate(const Routing& r) {
    std::vector<GroupTile> tiles(kChoicesMax);
    std::vector<int32_t> x_rows(8 * kChoicesMax, -1), pairs(8 * kChoicesMax, -1);
    int count = 0;
    for (size_t i = 0; i < r.ids.size(); ++i) {
      if (r.ids[i] < 0 || r.ids[i] >= r.mine) continue;
      const int first = 8 * count;
      tiles[static_cast<size_t>(count++)] = {r.slots ? (7 * r.ids[i] + 3) % kExperts : r.ids[i], first, 1};
      x_rows[static_cast<size_t>(first)] = 0, pairs[static_cast<size_t>(first)] = static_cast<int32_t>(i);
    }
    tiles_.set(tiles), x_rows_.set(x_rows), pairs_.set(pairs), count_.set({count});
    out_.poison(), shared_out_.poison(), hidden_.poison();
    if (count > 0) {
      linear_grouped(w1_w3_.w, packed_.p, tiles_.p, count_.p, count, 8, {gate_up_.p, Output::kBf16, 2 * inter_},
                     nullptr, nullptr, x_rows_.p);
      hidden_kernel<<<count, 128>>>(reinterpret_cast<const bf16*>(gate_up_.p), inter_, weights_.p, pairs_.p,
                                    WeightFormat::kFp4, hidden_.p);
      linear_grouped(w2_.w, hidden_.p, tiles_.p, count_.p, count, 8, {out_.p, Output::kBf16, d_}, nullptr, pairs_.p);
    }
    if (r.shared) linear(shared(), shared_hidden_.p, 1, {shared_out_.p, Output::kBf16, d_}, nullptr);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaDeviceSynchronize());
    return out_.get();
  }

  int d_, inter_;
  Fp4 w1_w3_, w2_;
  check::Device<uint8_t> shared_codes_, shared_scales_, x_, packed_, shared_hidden_, hidden_, gate_up_, out_,
      shared_out_;
  check::Device<int32_t> progress_, ids_, slot_of_, x_rows_, pairs_, count_;
  check::Device<float> weights_;
  check::Device<GroupTile> tiles_;
};

std::vector<int32_t> random_ids(check::Random& random, int choices) {
  std::vector<int32_t> ids;
  while (static_cast<int>(ids.size()) < choices) {
    const int id = random.below(kExperts);
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

void routings(Width& width, int turns, uint64_t seed) {
  check::Random random(seed);
  for (int i = 0; i < turns; ++i) {
    Routing r{random_ids(random, 6)};
    r.shared = i % 3 != 2;
    r.slots = i % 2 == 1;
    width.compare(r, seed + static_cast<uint64_t>(i), 1.0f, "random experts");
  }
}

// Few and many choices, the same expert again, experts of somebody else, large and tiny inputs.
void extremes(Width& width) {
  const int last = kExperts - 1;
  width.compare({{-1, -1, -1, -1, -1, -1}}, 1, 1.0f, "no expert");
  width.compare({{last}}, 2, 1.0f, "one expert");
  width.compare({{0, 0, 0, 0, 0, 0}}, 3, 1.0f, "one expert six times");
  width.compare({{0, last, 0, last, 0, last, 0, last}}, 4, 1.0f, "two experts in turns");
  width.compare({{last, 3, 8, 0, 5, 9}, 8, true}, 5, 1.0f, "experts of somebody else");
  width.compare({{1, -1, 2, -1, 3, 4}}, 6, 300.0f, "large inputs");
  width.compare({{1, 2, 3, 4, 5, 6}}, 7, 1e-6f, "tiny inputs");
  width.compare({{1, 2, 3, 4, 5, 6}}, 8, 0.0f, "zeros");
}

}  // namespace

int main(int argc, char** argv) {
  if (!check::device_or_skip()) return 0;
  const bool brief = argc > 1 && std::string(argv[1]) == "--short";
  {
    Width full(5120, 2304, 117, 7);
    routings(full, brief ? 1 : 12, 10);
    if (!brief) extremes(full);
  }
  for (const auto& [d, inter] : {std::pair{256, 128}, {1280, 640}, {2304, 2304}, {2432, 384}}) {
    Width small(d, inter, 110, 15);  // scales of 2^-17 .. 2^-2
    routings(small, brief ? 2 : 6, 20);
    extremes(small);
  }
  return check::verdict("experts");
}
