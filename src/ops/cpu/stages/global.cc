// The compressor, index keys and what they write to pages and rings (spec/model.md 7, 8.1, 16).
#include <cmath>
#include <cstring>

#include "ops/cpu/stages/backend.h"

namespace deepinfer::ops::cpu {

template <class T>
void Backend<T>::decode_key(const std::byte* page, const KvSource& source, int64_t entry, float* x) const {
  const std::byte* data = page + source.key_offset + entry * layout_.key_data_bytes;
  if (packed()) {
    const std::byte* scales = page + source.key_scale_offset + entry * layout_.key_scale_bytes;
    numeric::fq4i_decode(reinterpret_cast<const uint8_t*>(data), reinterpret_cast<const uint8_t*>(scales),
                         std::span<float>(x, c_.index_head_dim));
  } else {
    std::memcpy(x, data, c_.index_head_dim * sizeof(float));
  }
}

// latent and key are rotated already.
template <class T>
void Backend<T>::write_entry(const SequenceRows& s, const RowSet& set, const KvSource& source, int64_t entry,
                             float* latent, float* key) const {
  std::byte* p = page(s, set, entry, source.page_entries);
  const int64_t offset = entry % source.page_entries;
  std::byte* data = p + source.key_offset + offset * layout_.key_data_bytes;
  std::byte* record = p + source.entry_offset + offset * layout_.entry_bytes;
  if (packed()) {
    std::byte* scales = p + source.key_scale_offset + offset * layout_.key_scale_bytes;
    numeric::fq4i_encode(std::span<const float>(key, c_.index_head_dim), reinterpret_cast<uint8_t*>(data),
                         reinterpret_cast<uint8_t*>(scales));
    numeric::encode_entry_record(std::span<const float>(latent, c_.head_dim), reinterpret_cast<uint8_t*>(record));
  } else {
    std::memcpy(data, key, layout_.key_data_bytes);
    std::memcpy(record, latent, layout_.entry_bytes);
  }
}

template <class T>
void Backend<T>::write_global(At where) {
  find_complete_rows(where);
  const auto count = static_cast<int64_t>(complete_rows_.size());
  const int64_t d = c_.head_dim, di = c_.index_head_dim;
  float *latents = stage_rows_.data(), *keys = wide_rows_.data();  // [count, d], [count, di]
  auto pool = [&](int64_t begin, int64_t end) { pool_latents(where, begin, end, latents + begin * d); };
  parallel(count, pool, 8);
  linear(w_.layers[where.layer].indexer.wk, latents, d, count, keys, di);
  auto finish = [&](int64_t begin, int64_t end) {
    finish_entries(where, begin, end, latents + begin * d, keys + begin * di);
  };
  parallel(count, finish, 8);
  store_compressor_rows(where);
}

template <class T>
T* Backend<T>::compressor_row(const SequenceRows& s, const KvSource& source, int64_t position) const {
  return reinterpret_cast<T*>(slot(s) + source.compressor_offset +
                              (position % layout_.compressor_slots) * layout_.compressor_slot_bytes);
}

// Those that end a group and are not in the cache yet.
template <class T>
void Backend<T>::find_complete_rows(At where) {
  const RowSet& set = set_of(where.rows);
  const int ratio = layout_.sources[layout_.source_at(where.layer)].ratio;
  complete_rows_.clear();
  for (int i = 0; i < set.rows; ++i) {
    if (set.positions[i] >= set.of(i).cached && (set.positions[i] + 1) % ratio == 0) complete_rows_.push_back(i);
  }
}

// Places begin .. end - 1 of complete_rows_; `latents` begins with the first.
template <class T>
void Backend<T>::pool_latents(At where, int64_t begin, int64_t end, float* latents) {
  const RowSet& set = set_of(where.rows);
  const KvSource& source = layout_.sources[layout_.source_at(where.layer)];
  const int64_t d = c_.head_dim;
  for (int64_t k = begin; k < end; ++k, latents += d) {
    const int row = complete_rows_[k];
    const SequenceRows& s = set.of(row);
    const T* newer = at<T>(Role::kCompressorRows, row);
    if (source.ratio == 1) {
      for (int64_t i = 0; i < d; ++i) latents[i] = static_cast<float>(newer[i]);
    } else {
      const int64_t before = set.positions[row] - 1;
      const T* older =
          before >= s.first_position ? at<T>(Role::kCompressorRows, row - 1) : compressor_row(s, source, before);
      for (int64_t i = 0; i < d; ++i) {
        const T top = std::max(older[i], newer[i]), e0 = std::exp(older[i] - top), e1 = std::exp(newer[i] - top),
                sum = e0 + e1;
        latents[i] = round((e0 / sum) * older[d + i] + (e1 / sum) * newer[d + i]);
      }
    }
    norm(latents, vectors_[where.layer].compressor_norm.data(), d, latents);
    std::copy_n(latents, d, at<float>(Role::kLatent, row));
  }
}

// The same places: latents and products with wk -> pages. Both are overwritten.
template <class T>
void Backend<T>::finish_entries(At where, int64_t begin, int64_t end, float* latents, float* keys) {
  const RowSet& set = set_of(where.rows);
  const KvSource& source = layout_.sources[layout_.source_at(where.layer)];
  const int64_t d = c_.head_dim, di = c_.index_head_dim, half = c_.qk_rope_head_dim / 2;
  float* cos = scratch<float>(Slot::kInput, 2 * half);
  float* sin = cos + half;
  for (int64_t k = begin; k < end; ++k, latents += d, keys += di) {
    const int row = complete_rows_[k];
    const int64_t entry = set.positions[row] / source.ratio;
    rope_[1].table(entry * source.ratio, cos, sin);
    norm(keys, vectors_[where.layer].k_norm.data(), di, keys);
    rotate(keys, 1, di, cos, sin, false);
    rotate(latents, 1, d, cos, sin, false);
    write_entry(set.of(row), set, source, entry, latents, keys);
  }
}

template <class T>
void Backend<T>::store_compressor_rows(At where) {
  const RowSet& set = set_of(where.rows);
  const KvSource& source = layout_.sources[layout_.source_at(where.layer)];
  if (source.ratio == 1) return;
  for (const SequenceRows& s : set.sequences) {
    for (int r = std::max(0, s.rows - layout_.compressor_slots); r < s.rows; ++r) {
      const int64_t position = s.first_position + r;
      if (position >= s.cached)
        std::copy_n(at<T>(Role::kCompressorRows, s.first_row + r), 2 * c_.head_dim,
                    compressor_row(s, source, position));
    }
  }
}

template class Backend<float>;
template class Backend<double>;

}  // namespace deepinfer::ops::cpu
