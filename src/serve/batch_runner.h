// Carries out batches in the background: each line is a request to the route that it names, as if a client had sent it,
// at a low priority and a bounded number at a time over all batches, which take turns.
//
//   BatchRunner runner(service, store);
//   runner.start(router);      // goes on with what an earlier process left
//   runner.wake();             // a batch was added or cancelled; from any thread
//   runner.stop();             // lines in work end without a result; the next start does them again
//
// Results are in the store before they count. A line that the service is too busy for is tried again. While the service
// drains no line is begun.
#pragma once

#include <memory>

namespace deepinfer::serve {

class Router;
class Service;
class StateStore;

class BatchRunner {
 public:
  BatchRunner(Service& service, StateStore& store);
  ~BatchRunner();
  void start(const Router& router);
  void wake();
  void stop();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::serve
