#include "tests/support/golden/golden_file.h"

#include <simdjson.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "numeric/formats.h"

namespace deepinfer::testing {
namespace {

template <class T>
std::vector<double> numbers(const numeric::TensorView& view) {
  std::vector<double> out(view.elements());
  for (size_t i = 0; i < out.size(); ++i) {
    T v;
    std::memcpy(&v, view.data + i * sizeof v, sizeof v);
    out[i] = static_cast<double>(v);
  }
  return out;
}

Result<GoldenTensor> read_tensor(const checkpoint::SafetensorsFile::Tensor& t) {
  GoldenTensor g;
  g.shape = t.view.shape;
  switch (t.view.dtype) {
    case numeric::DType::kF32:
      g.type = GoldenType::kF32;
      g.values = numbers<float>(t.view);
      return g;
    case numeric::DType::kBF16:
      g.type = GoldenType::kBf16;
      g.values = numbers<uint16_t>(t.view);
      for (double& v : g.values) v = numeric::bf16_to_float(static_cast<uint16_t>(v));
      return g;
    case numeric::DType::kI32:
      g.type = GoldenType::kI32;
      g.values = numbers<int32_t>(t.view);
      return g;
    case numeric::DType::kU8:
    case numeric::DType::kBool:
      g.type = GoldenType::kU8;
      g.values = numbers<uint8_t>(t.view);
      return g;
    default:
      return make_error(Code::kUnsupported, "golden tensor {} has an element type that golden files do not use",
                        t.name);
  }
}

std::vector<int> integers(simdjson::dom::object o, std::string_view key) {
  std::vector<int> out;
  simdjson::dom::array list;
  if (o[key].get(list) != simdjson::SUCCESS) return out;
  for (simdjson::dom::element e : list) out.push_back(static_cast<int>(int64_t(e)));
  return out;
}

std::string text(simdjson::dom::element root, std::string_view pointer) {
  std::string_view s;
  return root.at_pointer(pointer).get(s) == simdjson::SUCCESS ? std::string(s) : std::string();
}

}  // namespace

Result<GoldenFile> GoldenFile::open(const std::string& base) {
  GoldenFile g;
  DI_ASSIGN_OR_RETURN(checkpoint::SafetensorsFile file, checkpoint::SafetensorsFile::open(base + ".safetensors"));
  for (const auto& t : file.tensors()) {
    DI_ASSIGN_OR_RETURN(GoldenTensor tensor, read_tensor(t));
    g.tensors.emplace(t.name, std::move(tensor));
  }
  DI_ASSIGN_OR_RETURN(const std::string index, read_file(base + ".json", 16 << 20));
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::dom::object object;
  if (parser.parse(index).get(root) != simdjson::SUCCESS || root.get(object) != simdjson::SUCCESS) {
    return make_error(Code::kInvalidArgument, "{}.json is not the index of golden tensors", base);
  }
  g.model = text(root, "/model");
  g.lengths = integers(object, "lengths");
  g.off_lengths = integers(object, "off_lengths");
  g.keep = integers(object, "keep");
  int64_t middle = 0, seed = 0;
  if (object["seed"].get(seed) == simdjson::SUCCESS) g.seed = seed;
  if (object["middle"].get(middle) == simdjson::SUCCESS) g.middle = static_cast<int>(middle);
  g.rope_plain_sha256 = text(root, "/facts/rope_plain_sha256");
  g.rope_yarn_sha256 = text(root, "/facts/rope_yarn_sha256");
  return g;
}

const GoldenTensor* GoldenFile::find(const std::string& name) const {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

bool within_one_step(double got, double want, GoldenType type) {
  if (got == want) return true;
  if (std::isnan(got) || std::isinf(want) || std::isinf(got)) return false;
  if (type == GoldenType::kI32 || type == GoldenType::kU8) return false;
  const auto w = static_cast<float>(want);
  if (type == GoldenType::kF32) {
    const auto g = static_cast<float>(got);
    return g == w || g == std::nextafter(w, INFINITY) || g == std::nextafter(w, -INFINITY);
  }
  // bf16: neighbours differ by one in the upper 16 bits.
  const int a = numeric::float_to_bf16(static_cast<float>(got)), b = numeric::float_to_bf16(w);
  return (a >> 15) == (b >> 15) ? std::abs(a - b) <= 1 : ((a & 0x7fff) + (b & 0x7fff)) <= 1;
}

Comparison compare(const GoldenTensor& want, std::span<const double> got, Tolerance tolerance) {
  Comparison c;
  if (got.size() != want.values.size()) {
    c.expected = fmt::format("{} values", want.values.size());
    c.got = fmt::format("{} values", got.size());
    return c;
  }
  const auto allowed = static_cast<size_t>(std::max(1.0, 1e-5 * static_cast<double>(got.size())));
  size_t different = 0, far = 0, first = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double w = want.values[i];
    // fp32 tensors were rounded from double when they were stored.
    const double g = want.type == GoldenType::kF32 ? static_cast<float>(got[i]) : got[i];
    if (g == w) continue;
    const bool integer = want.type == GoldenType::kI32 || want.type == GoldenType::kU8;
    const bool near =
        tolerance == Tolerance::kExact ? within_one_step(g, w, want.type) : !integer && std::abs(g - w) <= 1e-3;
    if (different++ == 0 || (far == 0 && !near)) first = i;
    if (!near) ++far;
  }
  c.ok = far == 0 && (tolerance == Tolerance::kOff || different <= allowed);
  if (!c.ok) {
    const int64_t cols = std::max<int64_t>(1, want.cols());
    c.expected = fmt::format("[{}, {}] = {:.9g}", first / cols, first % cols, want.values[first]);
    c.got =
        fmt::format("{:.9g}; {} of {} values differ, {} by more than allowed", got[first], different, got.size(), far);
  }
  return c;
}

}  // namespace deepinfer::testing
