#include "checkpoint/random_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/mix.h"
#include "numeric/formats.h"

namespace deepinfer::checkpoint {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr int64_t kScaleColumns = 32;

// factor and mean of the value rule that a name falls under.
struct Rule {
  float factor;
  float mean;
};

Rule rule_for(std::string_view name, int64_t k) {
  const double root = std::sqrt(static_cast<double>(k));
  const auto ends = [name](std::string_view suffix) { return name.ends_with(suffix); };
  if (ends("_fn")) return {static_cast<float>(3.0 / root), 0};
  if (ends("_scale")) return {0, 0.5f};
  if (ends("_base")) return {0.5f, 0};
  if (ends("attn_sink")) return {1, 0};
  if (ends("gate.bias") || ends("gate.bias_vl")) return {0.3125f, 0};
  if (ends("norm.weight") || ends("norm1.weight") || ends("norm2.weight") || ends("q_weight") || ends("k_weight"))
    return {0.125f, 1};
  if (ends("embed.weight")) return {1, 0};
  return {static_cast<float>(1.0 / root), 0};
}

float max_magnitude(const float* v, int64_t rows, int64_t stride) {
  float amax = 1e-30f;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < kScaleColumns; ++c) amax = std::max(amax, std::abs(v[r * stride + c]));
  }
  return amax;
}

void encode_fp8(const float* v, int64_t rows, int64_t columns, int64_t block_rows, uint8_t* codes, uint8_t* scales) {
  for (int64_t top = 0; top < rows; top += block_rows) {
    const int64_t height = std::min(block_rows, rows - top);
    for (int64_t c = 0; c < columns; c += kScaleColumns) {
      const float* block = v + top * columns + c;
      const uint8_t scale = numeric::ue8m0_at_least(max_magnitude(block, height, columns) / numeric::kE4m3Max);
      *scales++ = scale;
      const float inverse = numeric::ue8m0_inverse(scale);
      for (int64_t r = 0; r < height; ++r) {
        uint8_t* out = codes + (top + r) * columns + c;
        for (int64_t i = 0; i < kScaleColumns; ++i) out[i] = numeric::float_to_e4m3(block[r * columns + i] * inverse);
      }
    }
  }
}

void encode_fp4(const float* v, int64_t rows, int64_t columns, uint8_t* codes, uint8_t* scales) {
  for (int64_t g = 0; g < rows * columns; g += kScaleColumns) {
    const float* group = v + g;
    const uint8_t scale = numeric::ue8m0_at_least(max_magnitude(group, 1, columns) / numeric::kE2m1Max);
    *scales++ = scale;
    const float inverse = numeric::ue8m0_inverse(scale);
    for (int64_t i = 0; i < kScaleColumns; i += 2) {
      codes[(g + i) / 2] = numeric::pack_e2m1(numeric::float_to_e2m1(group[i] * inverse),
                                              numeric::float_to_e2m1(group[i + 1] * inverse));
    }
  }
}

}  // namespace

uint64_t fnv1a(std::string_view name) {
  uint64_t h = 0xCBF29CE484222325u;
  for (char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return h;
}

uint64_t splitmix(uint64_t z) { return mix_bits(z); }

RandomTensor::RandomTensor(uint64_t seed, const TensorSpec& spec)
    : key_(mix_bits(fnv1a(spec.name) ^ mix_bits(seed))), format_(spec.format), rows_(1), columns_(spec.shape.back()) {
  for (size_t i = 0; i + 1 < spec.shape.size(); ++i) rows_ *= spec.shape[i];
  const Rule rule = rule_for(spec.name, columns_);
  factor_ = rule.factor;
  mean_ = rule.mean;
  zero_row_7_ = spec.name == "embed.weight";
  engram_table_ = spec.name.ends_with("engram.embed.weight");
  row_bytes_ = static_cast<uint64_t>(stored_shape(spec).back()) * numeric::dtype_bytes(stored_dtype(format_));
  scale_bytes_ = 0;
  if (has_scale(format_)) {
    const std::vector<int64_t> shape = scale_shape(spec);
    scale_bytes_ = static_cast<uint64_t>(shape[0] * shape[1]);
  }
}

uint64_t RandomTensor::scale_offset(int64_t row_begin) const {
  const int64_t block_rows = format_ == Format::kFp8 ? 32 : 1;
  return static_cast<uint64_t>(row_begin / block_rows * (columns_ / kScaleColumns));
}

void RandomTensor::values(int64_t row_begin, int64_t row_end, float* out) const {
  const uint64_t first = static_cast<uint64_t>(row_begin) * static_cast<uint64_t>(columns_);
  const int64_t n = (row_end - row_begin) * columns_;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t w = mix_bits(key_ + (first + static_cast<uint64_t>(i) + 1) * kGolden);
    const int32_t sum =
        static_cast<int32_t>((w & 0xffff) + ((w >> 16) & 0xffff) + ((w >> 32) & 0xffff) + (w >> 48)) - 131070;
    const float z = static_cast<float>(sum * 111) * 0x1p-22f;
    out[i] = z * factor_ + mean_;
  }
  if (zero_row_7_ && row_begin <= 7 && 7 < row_end) std::fill_n(out + (7 - row_begin) * columns_, columns_, 0.0f);
  if (!engram_table_) return;
  for (int64_t r = row_begin; r < row_end; ++r) {
    float* row = out + (r - row_begin) * columns_;
    if (r % 64 == 5) std::fill_n(row, columns_, 0.0f);
    if (r % 64 == 6) {
      for (int64_t c = 0; c < columns_; ++c) row[c] *= 0x1p-20f;
    }
  }
}

void RandomTensor::fill(int64_t row_begin, int64_t row_end, std::byte* data, std::byte* scales) const {
  thread_local std::vector<float> band;
  uint8_t* scale_out = reinterpret_cast<uint8_t*>(scales);
  for (int64_t r = row_begin; r < row_end; r += kBandRows) {
    const int64_t rows = std::min(kBandRows, row_end - r), n = rows * columns_;
    band.resize(static_cast<size_t>(n));
    values(r, r + rows, band.data());
    uint8_t* out = reinterpret_cast<uint8_t*>(data) + static_cast<uint64_t>(r - row_begin) * row_bytes_;
    uint8_t* band_scales = scale_out == nullptr ? nullptr : scale_out + (scale_offset(r) - scale_offset(row_begin));
    switch (format_) {
      case Format::kF32: std::memcpy(out, band.data(), static_cast<size_t>(n) * sizeof(float)); break;
      case Format::kBF16:
        for (int64_t i = 0; i < n; ++i) {
          const uint16_t h = numeric::float_to_bf16(band[static_cast<size_t>(i)]);
          std::memcpy(out + 2 * i, &h, 2);
        }
        break;
      case Format::kFp8: encode_fp8(band.data(), rows, columns_, 32, out, band_scales); break;
      case Format::kFp8Rows: encode_fp8(band.data(), rows, columns_, 1, out, band_scales); break;
      case Format::kFp4: encode_fp4(band.data(), rows, columns_, out, band_scales); break;
    }
  }
}

}  // namespace deepinfer::checkpoint
