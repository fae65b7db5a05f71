#include "base/io_buffers.h"

#include <algorithm>
#include <bit>

namespace deepinfer {
namespace {

constexpr size_t kSlabBytes = 2 << 20, kAlignment = 4096, kStepsADoubling = 8;

size_t size_class(size_t bytes) {
  const size_t step = std::max(kAlignment, std::bit_floor(std::max<size_t>(bytes, 1)) / kStepsADoubling);
  return (std::max<size_t>(bytes, 1) + step - 1) / step * step;
}

}  // namespace

struct IoBuffers::Slab {
  HugeMemory memory;
  size_t buffer_bytes = 0, count = 0;
  std::vector<std::byte*> free;
};

IoBuffer::~IoBuffer() {
  if (owner_ != nullptr) owner_->give(static_cast<IoBuffers::Slab*>(slab_), data_.data());
}

IoBuffers::IoBuffers(const Options& options) : options_(options) {}
IoBuffers::~IoBuffers() = default;

IoBuffer IoBuffers::take(size_t bytes) {
  const size_t size = size_class(bytes);
  const std::lock_guard lock(mutex_);
  std::vector<std::unique_ptr<Slab>>& slabs = slabs_[size];
  auto at = std::ranges::find_if(slabs, [](const auto& s) { return !s->free.empty(); });
  if (at == slabs.end()) {
    Result<HugeMemory> memory = HugeMemory::allocate(std::max(kSlabBytes, size));
    if (!memory.ok()) return {};
    auto slab = std::make_unique<Slab>();
    slab->memory = std::move(memory).value();
    slab->buffer_bytes = size;
    slab->count = std::max<size_t>(1, kSlabBytes / size);
    for (size_t i = slab->count; i-- > 0;) slab->free.push_back(slab->memory.as<std::byte>() + i * size);
    held_ += slab->memory.bytes();
    unused_ += slab->memory.bytes();
    slabs.push_back(std::move(slab));
    at = std::prev(slabs.end());
  }
  Slab& slab = **at;
  if (slab.free.size() == slab.count) unused_ -= slab.memory.bytes();
  IoBuffer out;
  out.owner_ = this;
  out.slab_ = &slab;
  out.data_ = {slab.free.back(), size};
  slab.free.pop_back();
  return out;
}

void IoBuffers::give(Slab* slab, std::byte* data) {
  const std::lock_guard lock(mutex_);
  slab->free.push_back(data);
  if (slab->free.size() < slab->count) return;
  unused_ += slab->memory.bytes();
  if (unused_ <= options_.kept_bytes) return;
  unused_ -= slab->memory.bytes();
  held_ -= slab->memory.bytes();
  std::erase_if(slabs_[slab->buffer_bytes], [slab](const auto& s) { return s.get() == slab; });
}

size_t IoBuffers::bytes_held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace deepinfer
