// Golden tensors of a model (fixtures/model): a safetensors file of named tensors with a JSON index beside it.
//
//   Result<GoldenFile> g = GoldenFile::open("tests/data/model/tiny-random");   // .safetensors and .json
//   const GoldenTensor* t = g->find("exact.short.layer0.residual");
//   Comparison c = compare(*t, values, Tolerance::kExact);
//   if (!c.ok) print(c.expected, c.got);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer::testing {

enum class GoldenType : uint8_t { kBf16, kF32, kI32, kU8 };

struct GoldenTensor {
  GoldenType type = GoldenType::kF32;
  std::vector<int64_t> shape;
  std::vector<double> values;

  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t cols() const { return values.empty() ? 0 : static_cast<int64_t>(values.size()) / rows(); }
};

struct GoldenFile {
  static Result<GoldenFile> open(const std::string& base);
  const GoldenTensor* find(const std::string& name) const;

  std::string model;
  std::vector<int> lengths, off_lengths, keep;
  int middle = 0;
  int64_t seed = -1;  // of a random checkpoint; -1: not stated
  std::string rope_plain_sha256, rope_yarn_sha256;
  std::map<std::string, GoldenTensor> tensors;
};

enum class Tolerance : uint8_t {
  kExact,  // equal, or at most 1e-5 of the elements (at least one) one step of their format away
  kOff,    // within 1e-3
};

struct Comparison {
  bool ok = false;
  std::string expected, got;  // the first difference, and how many there are
};
Comparison compare(const GoldenTensor& want, std::span<const double> got, Tolerance tolerance);
bool within_one_step(double got, double want, GoldenType type);

}  // namespace deepinfer::testing
