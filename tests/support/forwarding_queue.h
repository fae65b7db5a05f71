// An IoQueue that hands everything on; tests derive from it what misbehaves.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "base/io_queue.h"

namespace deepinfer::testing {

class ForwardingQueue : public IoQueue {
 public:
  explicit ForwardingQueue(std::unique_ptr<IoQueue> inner) : inner_(std::move(inner)) {}
  const char* name() const override { return inner_->name(); }
  bool read(int fd, std::span<std::byte> into, uint64_t offset, uint64_t tag) override {
    return inner_->read(fd, into, offset, tag);
  }
  bool write(int fd, std::span<const std::byte> from, uint64_t offset, uint64_t tag) override {
    return inner_->write(fd, from, offset, tag);
  }
  void submit() override { inner_->submit(); }
  size_t poll(std::span<Done> done) override { return inner_->poll(done); }
  size_t wait(std::span<Done> done) override { return inner_->wait(done); }
  int in_flight() const override { return inner_->in_flight(); }

 private:
  const std::unique_ptr<IoQueue> inner_;
};

}  // namespace deepinfer::testing
