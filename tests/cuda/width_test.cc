// One row of the full width has kernels of its own (chain_few.h, experts_few.h, one row's mHC and routing): all that
// its layers leave behind is bit-equal to the same row beside another one, which goes through the kernels of many rows.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "bench/cuda/synthetic.h"
#include "ops/cuda/make.h"

namespace deepinfer {
namespace {

using namespace ops;
using bench::Synthetic;

constexpr int kExperts = 16, kContext = 300, kPages = 8;
constexpr std::pair<Role, const char*> kRoles[] = {
    {Role::kSublayerIn, "sublayer input"},   {Role::kQueryLow, "low queries"},
    {Role::kQuery, "queries"},               {Role::kWindowRecords, "records"},
    {Role::kHeads, "heads"},                 {Role::kSublayerOut, "sublayer output"},
    {Role::kExpertIds, "experts"},           {Role::kExpertWeights, "their weights"},
    {Role::kExpertOut, "their outputs"},     {Role::kSharedOut, "shared expert"},
    {Role::kPre, "pre"},                     {Role::kPost, "post"},
    {Role::kComb, "comb"},                   {Role::kResidual, "residual"}};

class Width : public ::testing::Test {
 protected:
  Width() : model_(kExperts) {
    auto made = cuda::make(0, {});
    EXPECT_TRUE(made.ok() || made.status().code() == Code::kNotFound) << made.status().to_string();
    if (!made.ok()) return;
    ops_ = std::move(made).value();
    const Limits limits{.rows_max = 4, .sequences_max = 2, .outputs_max = 2, .context_max = 1024, .blocks_max = 16};
    bench::must(ops_->load(model_.config(), model_.weights(), limits));
    layout_ = KvLayout::make(model_.config(), ops_->capabilities().kv_format);
    kv_ = ops_->allocate_kv(layout_, kPages, 2).value();
    fill_windows();
  }
  void fill_windows() {
    std::mt19937 random(3);
    std::vector<std::byte> slot(layout_.slot_stride);
    for (std::byte& x : slot) x = static_cast<std::byte>((random() >> 9) & 0xbf);
    for (size_t l = 0; l < Synthetic::kLayers; ++l) {
      for (int w = 0; w < layout_.window_slots; ++w) {
        for (size_t i = 512; i < layout_.window_bytes; ++i)
          slot[layout_.window_offsets[l] + w * layout_.window_bytes + i] = static_cast<std::byte>(120 + random() % 3);
      }
    }
    for (int i = 0; i < 2; ++i) bench::must(ops_->kv_write(kv_.slots + i * layout_.slot_stride, slot));
  }

  void layer(int l) {
    const At at{l, Rows::kDecoder};
    const auto& info = model_.config().layers[static_cast<size_t>(l)];
    uint32_t parts = kProjectQueries | kProjectWindow;
    if (info.owns_index()) parts |= kProjectIndexQueries;
    if (info.owns_kv()) parts |= kProjectCompressor;
    ops_->attention_project(at, parts);
    if (info.owns_kv()) ops_->write_global(at);
    if (info.owns_index()) ops_->select(at);
    ops_->attend(at);
    ops_->store_window(at);
    ops_->attention_output(at);
  }
  void experts(int l) {
    const At at{l, Rows::kDecoder};
    ops_->hc_leave_enter(at, Sublayer::kAttention, at, Sublayer::kFfn);
    ops_->route(at);
    ops_->experts(at, ops_->local_expert_rows(at));
    ops_->shared_expert(at);
    ops_->combine(at);
  }

  // What each half of each layer leaves of row 0, when `rows` sequences have one row each.
  std::map<std::string, std::vector<double>> outcome(int rows, uint64_t seed, bool graph) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<SequenceRows> s(static_cast<size_t>(rows));
    std::vector<int32_t> blocks, tokens, positions, sequence;
    for (int i = 0; i < rows; ++i) {
      s[static_cast<size_t>(i)] = {.slot = i,
                                   .first_row = i,
                                   .rows = 1,
                                   .first_position = kContext - 1,
                                   .window_begin = 0,
                                   .cached = 0,
                                   .first_block = 4 * i,
                                   .block_count = 3};
      for (int p = 0; p < 4; ++p) blocks.push_back(4 * i + p);
      tokens.push_back(static_cast<int32_t>(random() % 16000));
      positions.push_back(kContext - 1);
      sequence.push_back(i);
    }
    bench::must(ops_->begin(Rows::kDecoder, {.rows = rows,
                                             .sequences = s,
                                             .blocks = blocks,
                                             .tokens = tokens,
                                             .positions = positions,
                                             .sequence = sequence,
                                             .source = positions}));
    std::map<std::string, std::vector<double>> all;
    const auto keep = [&](const std::string& where, bool experts) {
      bench::must(ops_->synchronize());
      for (const auto& [role, name] : kRoles) {
        const bool of_experts = role == Role::kExpertIds || role == Role::kExpertWeights || role == Role::kExpertOut ||
                                role == Role::kSharedOut;
        if (of_experts && !experts) continue;  // of what was computed before
        std::vector<double> v(static_cast<size_t>(ops_->buffer(role).cols));
        bench::must(ops_->read(role, 0, 1, v));
        all[where + ", " + name] = std::move(v);
      }
    };
    const auto step = [&](int kind, const std::function<void()>& stages) {
      ops_->run({static_cast<uint8_t>(kind), graph ? rows : 0}, stages);
    };
    step(100, [&] {
      ops_->embed(Rows::kDecoder);
      ops_->hc_enter({0, Rows::kDecoder}, Sublayer::kAttention);
    });
    for (int l = 0; l < Synthetic::kLayers; ++l) {
      step(101 + 3 * l, [&] { layer(l); });
      keep("layer " + std::to_string(l) + ", attention", false);
      step(102 + 3 * l, [&] { experts(l); });
      keep("layer " + std::to_string(l) + ", experts", true);
      if (l + 1 == Synthetic::kLayers) break;
      step(103 + 3 * l, [&] {
        ops_->hc_leave_enter({l, Rows::kDecoder}, Sublayer::kFfn, {l + 1, Rows::kDecoder}, Sublayer::kAttention);
      });
    }
    return all;
  }

  Synthetic model_;
  std::unique_ptr<Ops> ops_;
  KvLayout layout_;
  KvMemory kv_;
};

TEST_F(Width, ARowIsAloneWhatItIsBesideAnother) {
  if (ops_ == nullptr) GTEST_SKIP() << "no GPU here";
  for (const bool graph : {false, true}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const auto two = outcome(2, seed, graph), one = outcome(1, seed, graph);
      for (const auto& [where, expected] : two) {
        const std::vector<double>& got = one.at(where);
        size_t wrong = 0, nonzero = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
          wrong += std::memcmp(&got[i], &expected[i], sizeof(double)) != 0;
          nonzero += expected[i] != 0;
        }
        EXPECT_EQ(wrong, 0u) << where << ", of " << expected.size() << " values, seed " << seed
                             << (graph ? ", graph" : "");
        if (seed == 1 && !graph && nonzero * 2 < expected.size())
          std::printf("%s: only %zu of %zu values are not 0\n", where.c_str(), nonzero, expected.size());
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
