// Waiting requests of all tenants in one queue with weighted fair shares (start-time fair queueing). Internal to
// sched/.
//
//   FairQueue q;
//   int flow = q.flow(tenant, priority, weight);
//   q.push_back(flow, sequence);
//   for (int at = 0; Sequence* s = q.candidate(at); ++at) if (fits(s)) { q.take(s); q.charge(flow, rows); break; }
//
// A flow is a tenant at a priority. Its virtual time rises by rows / weight for what it is charged; the flow with the
// least is next (ties: the older flow). A flow that was idle starts at the virtual time of the queue, so idling earns
// nothing and everybody is served within the sum of the others' shares. Within a flow: first come, first served;
// preempted ones go in front.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace deepinfer::sched {

struct Sequence;

class FairQueue {
 public:
  int flow(int32_t tenant, int32_t priority, double weight);
  void set_weight(int32_t tenant, double weight);

  void push_back(int flow, Sequence* s);
  void push_front(int flow, Sequence* s);
  // Behind all that arrived before it.
  void push_by_arrival(int flow, Sequence* s);
  void remove(int flow, Sequence* s);
  // The head of the flow that is `rank`-th in the order of virtual time; null behind the last. Valid until the queue
  // changes.
  Sequence* candidate(int rank);
  // Removes the head that candidate() gave and moves the queue's virtual time on.
  void take(int flow);
  void charge(int flow, double rows) { flows_[flow].time += rows * flows_[flow].per_row; }

  int size() const { return size_; }

 private:
  struct Flow {
    double per_row = 1;  // 1 / weight
    double time = 0;
    std::deque<Sequence*> waiting;
  };

  void activate(Flow& f);

  std::map<std::pair<int32_t, int32_t>, int> by_name_;
  std::vector<Flow> flows_;
  std::vector<int> order_;  // flows with waiting requests by virtual time, made when first asked for
  bool ordered_ = false;
  double time_ = 0;
  int size_ = 0;
};

}  // namespace deepinfer::sched
