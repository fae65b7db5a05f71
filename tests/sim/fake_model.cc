#include "tests/sim/fake_model.h"

#include <algorithm>

namespace deepinfer::sim {
namespace {

uint64_t first_hidden(int position, int32_t token, std::span<const int32_t> history) {
  uint64_t h = mix(static_cast<uint64_t>(position), static_cast<uint32_t>(token));
  for (int32_t t : history) h = mix(h, static_cast<uint32_t>(t));
  return h;
}

// An earlier position whose global KV the encoder's layer reads.
int looked_up(int position, int layer) {
  return static_cast<int>(mix(position, 77 + layer) % static_cast<uint64_t>(position));
}

}  // namespace

FakeMemory::FakeMemory(const FakeShape& shape, int blocks, int slots)
    : shape_(shape), blocks_(static_cast<size_t>(blocks) * shape.block_tokens), slots_(slots * slot_words()) {
  for (int b = 0; b < blocks; ++b) poison_block(b);
  for (int s = 0; s < slots; ++s) poison_slot(s);
}

void FakeMemory::poison_block(int b) {
  for (uint64_t& v : block(b)) v = mix(++poison_, 0xdead);
}

void FakeMemory::poison_slot(int s) {
  for (uint64_t& v : slot(s)) v = mix(++poison_, 0xbeef);
}

void FakeMemory::save_windows(int slot, int border, std::span<uint64_t> out) {
  size_t at = 0;
  for (int l = 0; l < shape_.encoder_layers; ++l) {
    for (int p = border - (shape_.window - 1); p < border; ++p) out[at++] = p < 0 ? 0 : ring(slot, l, p);
  }
}

void FakeMemory::load_windows(int slot, int border, std::span<const uint64_t> in) {
  size_t at = 0;
  for (int l = 0; l < shape_.encoder_layers; ++l) {
    for (int p = border - (shape_.window - 1); p < border; ++p, ++at) {
      if (p >= 0) ring(slot, l, p) = in[at];
    }
  }
}

uint64_t FakeMemory::run_row(const model::StepSequence& s, int position, int32_t token,
                             std::span<const int32_t> history, std::span<const int32_t> table) {
  const int window = shape_.window;
  uint64_t hidden = first_hidden(position, token, history);
  for (int l = 0; l < shape_.encoder_layers; ++l) {
    ring(s.slot, l, position) = mix(hidden, l);
    uint64_t acc = hidden;
    for (int q = std::max({position - window + 1, s.window_begin, 0}); q <= position; ++q)
      acc = mix(acc, ring(s.slot, l, q));
    if (position > 0) acc = mix(acc, global(table, looked_up(position, l)));
    hidden = acc;
  }
  if (position >= s.cached) {
    blocks_[static_cast<size_t>(table[position / shape_.block_tokens]) * shape_.block_tokens +
            position % shape_.block_tokens] = mix(hidden, 1000);
  }
  if (position < s.decoder_begin) return 0;
  const int layer = shape_.encoder_layers;
  ring(s.slot, layer, position) = mix(hidden, 2000);
  uint64_t acc = mix(mix(hidden, s.decoder_begin), position);
  for (int q = std::max(position - window + 1, s.decoder_begin); q <= position; ++q)
    acc = mix(acc, ring(s.slot, layer, q));
  uint64_t all = 0;
  for (int q = 0; q <= position; ++q) all += global(table, q) * static_cast<uint64_t>(2 * q + 1);
  return mix(acc, all) | 1;
}

std::vector<int32_t> solo_tokens(const FakeShape& shape, std::span<const int32_t> prompt, int decoder_begin,
                                 uint64_t seed, uint32_t sample, int max_output) {
  std::vector<std::vector<uint64_t>> windows(shape.encoder_layers);
  std::vector<uint64_t> decoder, global;
  std::vector<int32_t> tokens(prompt.begin(), prompt.end()), history(shape.history);
  uint64_t all = 0;
  for (int p = 0; p < static_cast<int>(prompt.size()) + max_output - 1; ++p) {
    for (int k = 0; k < shape.history; ++k) history[k] = p - 1 - k < 0 ? kNoToken : tokens[p - 1 - k];
    uint64_t hidden = first_hidden(p, tokens[p], history);
    for (int l = 0; l < shape.encoder_layers; ++l) {
      windows[l].push_back(mix(hidden, l));
      uint64_t acc = hidden;
      for (int q = std::max(p - shape.window + 1, 0); q <= p; ++q) acc = mix(acc, windows[l][q]);
      if (p > 0) acc = mix(acc, global[looked_up(p, l)]);
      hidden = acc;
    }
    global.push_back(mix(hidden, 1000));
    all += global.back() * static_cast<uint64_t>(2 * p + 1);
    decoder.push_back(mix(hidden, 2000));
    if (p + 1 < static_cast<int>(prompt.size())) continue;
    uint64_t acc = mix(mix(hidden, decoder_begin), p);
    for (int q = std::max(p - shape.window + 1, decoder_begin); q <= p; ++q) acc = mix(acc, decoder[q]);
    tokens.push_back(draw(mix(acc, all) | 1, seed, sample, shape));
    if (tokens.back() == kStopToken) break;
  }
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<int64_t>(prompt.size()));
  return tokens;
}

}  // namespace deepinfer::sim
