// Groups beside plain prefill: decoder tail, resume, cached prefixes, image span, rings, records, RoPE tables.
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "ops/rope.h"
#include "tests/support/golden/bench.h"
#include "tests/support/golden/golden_runs.h"
#include "tests/support/golden/stage_recorder.h"

namespace deepinfer::testing {

using model::Sequence;
using ops::Role;

namespace {

// The last row of a prefill, then one row for each of the tokens.
Status prefill_then_decode(Sequence& s, std::span<const int32_t> prompt, std::span<const int32_t> tokens,
                           std::vector<float>* rows) {
  DI_RETURN_IF_ERROR(s.append(prompt, 1, rows));
  std::vector<float> row;
  for (int32_t t : tokens) {
    DI_RETURN_IF_ERROR(s.append(std::span(&t, 1), 1, &row));
    rows->insert(rows->end(), row.begin(), row.end());
  }
  return {};
}

std::string sha256_hex(std::span<const float> values) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(values.data(), values.size_bytes(), digest, &size, EVP_sha256(), nullptr);
  std::string out;
  for (unsigned int i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

}  // namespace

void GoldenRunner::bounded(Bench& b) {
  const int middle = golden_.middle;
  for (int keep : golden_.keep) {
    const std::string name = fmt::format("exact.bounded{}.logits", keep);
    if (!has(name)) continue;
    Result<Sequence> s = b.sequence(middle - keep);
    if (!ok(s.status(), name)) return;
    std::vector<float> rows;
    if (ok(prefill_then_decode(s.value(), ids(0, middle), ids(middle, middle + kDecoded), &rows), name))
      check(name, rows, Tolerance::kExact);
  }
}

void GoldenRunner::resume(Bench& b) {
  if (!has("exact.resume.tokens")) return;
  const GoldenTensor& tokens = *golden_.find("exact.resume.tokens");
  const auto n = static_cast<int>(tokens.values.size());
  constexpr int kPrompt = 150;
  const int begin = kPrompt - golden_.keep[0];
  const int64_t vocabulary = b.model->config().vocab_size;
  Result<Sequence> live = b.sequence(begin);
  if (!ok(live.status(), "exact.resume")) return;
  std::vector<float> row, rows;
  std::vector<int32_t> all = ids(0, kPrompt);
  std::vector<double> chosen;
  if (!ok(live->append(all, 1, &row), "exact.resume")) return;
  rows = row;
  for (int i = 0; i < n; ++i) {
    const auto best = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    chosen.push_back(best);
    all.push_back(best);
    if (!ok(live->append(std::span(&best, 1), 1, &row), "exact.resume")) return;
    rows.insert(rows.end(), row.begin(), row.end());
  }
  check("exact.resume.tokens", chosen, Tolerance::kExact);
  std::vector<float> stored;
  for (int i : {0, 5, 10, 19, 20})
    stored.insert(stored.end(), rows.begin() + i * vocabulary, rows.begin() + (i + 1) * vocabulary);
  check("exact.resume.logits", stored, Tolerance::kExact);

  // Recomputing prompt and tokens with the same decoder_begin, in pieces of 37, gives the same bits.
  Result<Sequence> again = b.sequence(begin);
  std::vector<float> recomputed, part;
  for (int at = 0; again.ok() && at < kPrompt + n; at += 37) {
    const int end = std::min(at + 37, kPrompt + n), outputs = std::clamp(end - (kPrompt - 1), 0, end - at);
    if (!ok(again->append(std::span(all).subspan(at, end - at), outputs, &part), "exact.resume")) return;
    recomputed.insert(recomputed.end(), part.begin(), part.end());
  }
  check_true("exact.resume: recomputed in chunks", recomputed == rows, "the bits of the live run", "other bits");

  Result<Sequence> wrong = b.sequence(kPrompt + n - golden_.keep[0]);
  if (!ok(wrong.status(), "exact.resume") || !ok(wrong->append(all, 1, &part), "exact.resume")) return;
  check("exact.resume.wrong_logits", part, Tolerance::kExact);
  check_true("exact.resume: a later decoder_begin shows", !std::equal(part.begin(), part.end(), row.begin()),
             "other bits", "the bits of the live run");
}

void GoldenRunner::cached(Bench& b) {
  if (!has("exact.cached.cold_logits")) return;
  const checkpoint::ModelConfig& c = b.model->config();
  const int keep = golden_.keep[0], window = static_cast<int>(c.sliding_window);
  for (const auto& [length, hits] : std::vector<std::pair<int, std::vector<int>>>{{300, {128, 256}}, {290, {256}}}) {
    const int begin = length - keep;
    Result<Sequence> source = b.sequence(begin);
    if (!ok(source.status(), "exact.cached")) return;
    std::vector<float> cold;
    if (!ok(prefill_then_decode(source.value(), ids(0, length), ids(300, 300 + kDecoded), &cold), "exact.cached"))
      return;
    if (length == 300) check("exact.cached.cold_logits", cold, Tolerance::kExact);
    for (int hit : hits) {
      for (const bool exact : {true, false}) {
        const int replay = exact ? window + (c.decoder_start - 1) * (window - 1) : window;
        const int start = std::max(0, std::min(hit, begin) - replay);
        const std::string name =
            fmt::format("exact.cached{}{}", hit, exact ? ": exact replay equals cold" : ".bounded_logits");
        const ops::KvLayout& k = b.model->kv_layout();
        const std::byte* shared = b.model->kv_memory().pages + source->blocks()[0] * k.page_stride;
        std::vector<std::byte> before(k.page_stride), after(k.page_stride);
        if (!ok(b.model->ops().kv_read(shared, before), name)) return;
        Result<Sequence> s = Sequence::with_cached_prefix(source.value(), hit, start, begin);
        std::vector<float> rows;
        if (!ok(s.status(), name) ||
            !ok(prefill_then_decode(s.value(), ids(start, length), ids(300, 300 + kDecoded), &rows), name))
          return;
        if (!ok(b.model->ops().kv_read(shared, after), name)) return;
        check_true(fmt::format("exact.cached{}: shared pages are not written", hit), before == after, "the same bytes",
                   "other bytes");
        if (exact) {
          check_true(fmt::format("{} ({} tokens)", name, length), rows == cold, "the bits of the cold run",
                     "other bits");
        } else if (length == 300) {
          check(name, rows, Tolerance::kExact);
        }
      }
    }
  }
}

void GoldenRunner::image(Bench& b) {
  if (!has("exact.image.ids")) return;
  for (const char* name : {"exact.image.ids", "exact.image.mask", "exact.image.rows"}) compared_.insert(name);
  const GoldenTensor &text = *golden_.find("exact.image.ids"), &mask = *golden_.find("exact.image.mask"),
                     &rows = *golden_.find("exact.image.rows");
  const auto prompt = static_cast<int>(mask.values.size());
  const std::vector<int32_t> tokens(text.values.begin(), text.values.end());
  std::vector<int32_t> image_rows;
  int next = 0;
  for (double m : mask.values) image_rows.push_back(m != 0 ? next++ : -1);
  if (!ok(b.model->ops().write(Role::kImageRows, 0, rows.rows(), rows.values), "exact.image")) return;

  const int64_t vocabulary = b.model->config().vocab_size;
  std::vector<float> whole, part;
  Result<Sequence> s = b.sequence(0);
  if (!ok(s.status(), "exact.image")) return;
  StageRecorder recorder(*b.model);
  recorder.start(&s.value(), prompt);
  const Status status = s->append(std::span(tokens).first(prompt), prompt, &whole, image_rows);
  recorder.stop();
  if (!ok(status, "exact.image")) return;
  for (const auto& [name, values] : recorder.stages()) check("exact.image." + name, values, Tolerance::kExact);
  std::vector<float> stored;
  for (int i : {19, 20, 29, 30, 59})
    stored.insert(stored.end(), whole.begin() + i * vocabulary, whole.begin() + (i + 1) * vocabulary);
  for (size_t i = prompt; i < tokens.size(); ++i) {
    if (!ok(s->append(std::span(tokens).subspan(i, 1), 1, &part), "exact.image")) return;
    stored.insert(stored.end(), part.begin(), part.end());
  }
  check("exact.image.logits", stored, Tolerance::kExact);

  Result<Sequence> cut = b.sequence(0);
  std::vector<float> pieces;
  for (const auto& [begin, end] : {std::pair{0, 25}, std::pair{25, prompt}}) {
    if (!ok(cut.status(), "exact.image") || !ok(cut->append(std::span(tokens).subspan(begin, end - begin), end - begin,
                                                            &part, std::span(image_rows).subspan(begin, end - begin)),
                                                "exact.image")) {
      return;
    }
    pieces.insert(pieces.end(), part.begin(), part.end());
  }
  check_true("exact.image: cut inside the span", pieces == whole, "the bits of the whole prompt", "other bits");
}

void GoldenRunner::rings(Bench& b) {
  constexpr int kTokens = 70;
  if (!has("exact.ring.draft0.bytes")) return;
  Result<Sequence> s = b.sequence(0);
  std::vector<float> logits;
  if (!ok(s.status(), "exact.ring") || !ok(s->append(ids(0, kTokens), 1, &logits), "exact.ring")) return;
  const ops::KvLayout& k = b.model->kv_layout();
  std::vector<std::byte> slot(k.slot_stride);
  if (!ok(b.model->ops().kv_read(b.model->kv_memory().slots + s->slot() * k.slot_stride, slot), "exact.ring")) return;
  const int layers = static_cast<int>(b.model->config().num_hidden_layers);
  for (size_t ring = 0; ring < k.window_offsets.size(); ++ring) {
    const bool draft = static_cast<int>(ring) >= layers;
    std::vector<double> bytes;
    for (size_t i = 0; i < k.window_slots * k.window_bytes; ++i)
      bytes.push_back(std::to_integer<int>(slot[k.window_offsets[ring] + i]));
    check(fmt::format("exact.ring.{}{}.bytes", draft ? "draft" : "layer", draft ? ring - layers : ring), bytes,
          Tolerance::kExact);
  }
  for (const ops::KvSource& source : k.sources) {
    if (source.ratio < 2) continue;
    std::vector<double> values(k.compressor_slots * k.compressor_slot_bytes / sizeof(double));
    std::memcpy(values.data(), slot.data() + source.compressor_offset, values.size() * sizeof(double));
    check(fmt::format("exact.ring.compressor{}", source.layer), values, Tolerance::kExact);
  }
}

void GoldenRunner::records() {
  for (const std::string kind : {"window", "draft", "entry", "entry_ratio1", "key"}) {
    const std::string name = "exact.records." + kind;
    const GoldenTensor* in = golden_.find(name + ".in");
    if (in == nullptr) continue;
    compared_.insert(name + ".in");
    const auto d = static_cast<size_t>(in->cols());
    std::vector<double> bytes, values;
    for (int64_t row = 0; row < in->rows(); ++row) {
      const std::vector<float> x(in->values.begin() + row * d, in->values.begin() + (row + 1) * d);
      std::vector<float> back(d);
      std::vector<uint8_t> record;
      if (kind == "window" || kind == "draft") {
        record.resize(numeric::window_record_bytes(d));
        numeric::encode_window_record(std::span(x), record.data());
        numeric::decode_window_record(record.data(), std::span(back));
      } else if (kind == "key") {
        record.resize(numeric::key_record_bytes(d));
        numeric::encode_key_record(std::span(x), record.data());
        numeric::decode_key_record(record.data(), std::span(back));
      } else {
        record.resize(numeric::entry_record_bytes(d));
        numeric::encode_entry_record(std::span(x), record.data());
        numeric::decode_entry_record(record.data(), std::span(back));
      }
      bytes.insert(bytes.end(), record.begin(), record.end());
      values.insert(values.end(), back.begin(), back.end());
    }
    check(name + ".bytes", bytes, Tolerance::kExact);
    check(name + ".values", values, Tolerance::kExact);
  }
}

void GoldenRunner::rope() {
  constexpr int kTable = 2048;
  for (const bool compressed : {false, true}) {
    const std::string kind = compressed ? "yarn" : "plain", name = "rope." + kind;
    const ops::RopeFrequencies f = ops::RopeFrequencies::make(checkpoint_->config(), compressed);
    const size_t half = f.f.size();
    std::vector<float> cos(kTable * half), sin(kTable * half);
    for (int p = 0; p < kTable; ++p) f.table(p, cos.data() + p * half, sin.data() + p * half);
    std::vector<double> cos_rows, sin_rows;
    for (int p : {1, 7, 100, 2047}) {
      cos_rows.insert(cos_rows.end(), cos.begin() + p * half, cos.begin() + (p + 1) * half);
      sin_rows.insert(sin_rows.end(), sin.begin() + p * half, sin.begin() + (p + 1) * half);
    }
    // Bit for bit: no tolerance of one step here.
    const GoldenTensor* want = golden_.find(name + "_f");
    check_true(name + ": frequencies bit for bit",
               want == nullptr || std::equal(f.f.begin(), f.f.end(), want->values.begin(), want->values.end()), "equal",
               "different");
    check(name + "_f", f.f, Tolerance::kExact);
    check(name + "_cos", cos_rows, Tolerance::kExact);
    check(name + "_sin", sin_rows, Tolerance::kExact);
    const std::string& sha = compressed ? golden_.rope_yarn_sha256 : golden_.rope_plain_sha256;
    if (sha.empty()) continue;
    cos.insert(cos.end(), sin.begin(), sin.end());
    const std::string got = sha256_hex(cos);
    check_true(name + ": sha256 of the first 2048 rows", got == sha, sha, got);
  }
}

}  // namespace deepinfer::testing
