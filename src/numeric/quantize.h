// The fake quantisations of the model (spec/model.md 4.2-4.4) and the cache records made of them (16.1).
//
//   std::vector<uint8_t> codes(512), scales(16);
//   fq8_encode(std::span<const float>(x), codes.data(), scales.data());   // FQ8: e4m3 codes, one ue8m0 per 32 channels
//   fq8(std::span<float>(x));                                             // the same, values in place
//
//   std::vector<uint8_t> record(window_record_bytes(512));                // 528 bytes
//   encode_window_record(std::span<const float>(x), record.data());
//   decode_window_record(record.data(), std::span<float>(x));
//
//   name   group  code   scale of a group                                          used for
//   FQ8    32     e4m3   2^ceil(log2(max(amax, 1e-4) * fp32(1/448))), ue8m0        linear inputs, window and drafter KV
//   FQ4K   16     e2m1   e4m3(min(max(amax, 6*2^-9) / 6, 448))                     compressed KV entries
//   FQ4I   32     e2m1   2^ceil(log2(max(amax, 6*2^-126) / 6)), ue8m0              index keys and queries
//
// Sizes are multiples of the group (checked by assert). Every function exists for float and double; values that are
// bf16 give the same bytes in both. Dequantised values are exact in bf16. Infinities saturate; a NaN leaves the group's
// scale alone, becomes e4m3's NaN in FQ8 and 0 in FP4. FP4 codes are packed two to a byte, even channel in the low
// nibble: x.size() / 2 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deepinfer::numeric {

inline constexpr size_t kFq8Group = 32;
inline constexpr size_t kFq4kGroup = 16;
inline constexpr size_t kFq4iGroup = 32;

// Scale of one group, as its byte (ue8m0, e4m3, ue8m0).
uint8_t fq8_scale(std::span<const float> group);
uint8_t fq8_scale(std::span<const double> group);
uint8_t fq4k_scale(std::span<const float> group);
uint8_t fq4k_scale(std::span<const double> group);
uint8_t fq4i_scale(std::span<const float> group);
uint8_t fq4i_scale(std::span<const double> group);

// codes: x.size() bytes (FQ8) or x.size() / 2 (FQ4K, FQ4I); scales: one byte a group.
void fq8_encode(std::span<const float> x, uint8_t* codes, uint8_t* scales);
void fq8_encode(std::span<const double> x, uint8_t* codes, uint8_t* scales);
void fq4k_encode(std::span<const float> x, uint8_t* codes, uint8_t* scales);
void fq4k_encode(std::span<const double> x, uint8_t* codes, uint8_t* scales);
void fq4i_encode(std::span<const float> x, uint8_t* codes, uint8_t* scales);
void fq4i_encode(std::span<const double> x, uint8_t* codes, uint8_t* scales);

void fq8_decode(const uint8_t* codes, const uint8_t* scales, std::span<float> x);
void fq8_decode(const uint8_t* codes, const uint8_t* scales, std::span<double> x);
void fq4k_decode(const uint8_t* codes, const uint8_t* scales, std::span<float> x);
void fq4k_decode(const uint8_t* codes, const uint8_t* scales, std::span<double> x);
void fq4i_decode(const uint8_t* codes, const uint8_t* scales, std::span<float> x);
void fq4i_decode(const uint8_t* codes, const uint8_t* scales, std::span<double> x);

// Quantise and dequantise in place.
void fq8(std::span<float> x);
void fq8(std::span<double> x);
void fq4k(std::span<float> x);
void fq4k(std::span<double> x);
void fq4i(std::span<float> x);
void fq4i(std::span<double> x);

// ---- Records: codes of d channels, then their scales, without padding -------------------------------------------

constexpr size_t window_record_bytes(size_t d) { return d + d / kFq8Group; }      // 528 for d = 512
constexpr size_t entry_record_bytes(size_t d) { return d / 2 + d / kFq4kGroup; }  // 288 for d = 512
constexpr size_t key_record_bytes(size_t d) { return d / 2 + d / kFq4iGroup; }    // 68 for d = 128

// Window and drafter KV: FQ8.
template <class T>
void encode_window_record(std::span<const T> x, uint8_t* record) {
  fq8_encode(x, record, record + x.size());
}
template <class T>
void decode_window_record(const uint8_t* record, std::span<T> x) {
  fq8_decode(record, record + x.size(), x);
}

// Compressed KV entry: FQ4K.
template <class T>
void encode_entry_record(std::span<const T> x, uint8_t* record) {
  fq4k_encode(x, record, record + x.size() / 2);
}
template <class T>
void decode_entry_record(const uint8_t* record, std::span<T> x) {
  fq4k_decode(record, record + x.size() / 2, x);
}

// Index key: FQ4I. A page keeps the two parts apart; call fq4i_encode with two addresses there.
template <class T>
void encode_key_record(std::span<const T> x, uint8_t* record) {
  fq4i_encode(x, record, record + x.size() / 2);
}
template <class T>
void decode_key_record(const uint8_t* record, std::span<T> x) {
  fq4i_decode(record, record + x.size() / 2, x);
}

}  // namespace deepinfer::numeric
