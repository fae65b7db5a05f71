// Keeps a GPU busy: a stand-in for one that does not answer any more.
#pragma once

namespace deepinfer::testing {

// From now on no other kernel can start, until the object goes (or 20 s have passed).
class GpuHog {
 public:
  GpuHog();
  ~GpuHog();
  GpuHog(const GpuHog&) = delete;
  bool holds() const { return ok_; }

 private:
  int* free_ = nullptr;  // pinned
  void* stream_ = nullptr;
  bool ok_ = false;
};

}  // namespace deepinfer::testing
