#include "ops/cpu/cpu_ops.h"

#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/kernels.h"
#include "ops/cpu/stages/backend.h"

namespace deepinfer::ops {

std::unique_ptr<Ops> make_reference_ops(ReferenceMode mode, int threads) {
  const bool exact = mode == ReferenceMode::kExact;
  Capabilities c;
  c.backend = "reference";
  c.offload = true;
  c.numeric_class = exact ? "reference-exact-1" : "reference-off-1";
  c.host_memory = true;
  // The open half group keeps double precision: rounded to fp32 it would make a chunk border visible.
  c.kv_format = {exact ? KvFormat::Records::kPacked : KvFormat::Records::kRaw, sizeof(double)};
  return std::make_unique<cpu::Backend<double>>(std::move(c), exact, threads);
}

std::unique_ptr<Ops> make_plain_ops(int threads) {
  Capabilities c;
  c.backend = "plain";
  c.offload = true;
  c.numeric_class = "plain-fp32-1";
  c.host_memory = true;
  c.kv_format = {KvFormat::Records::kPacked, sizeof(float)};
  return std::make_unique<cpu::Backend<float>>(std::move(c), true, threads);
}

std::unique_ptr<Ops> make_fast_ops(int threads, const std::string& isa, bool pin) {
  const cpu::fast::Kernels* kernels = cpu::fast::choose_kernels(isa.c_str());
  if (kernels == nullptr) return nullptr;
  Capabilities c;
  c.backend = "fast";
  c.offload = true;
  c.numeric_class = kernels->numeric_class;
  c.host_memory = true;
  c.kv_format = {KvFormat::Records::kPacked, sizeof(float)};
  return std::make_unique<cpu::fast::FastBackend>(std::move(c), *kernels, threads, pin);
}

std::unique_ptr<Ops> make_cpu_ops(int threads, bool pin) {
  std::unique_ptr<Ops> fast = make_fast_ops(threads, "", pin);
  return fast != nullptr ? std::move(fast) : make_plain_ops(threads);
}

}  // namespace deepinfer::ops
