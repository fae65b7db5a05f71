#include "sched/fair_queue.h"

#include <algorithm>
#include <cmath>

#include "sched/scheduler_impl.h"

namespace deepinfer::sched {

int FairQueue::flow(int32_t tenant, int32_t priority, double weight) {
  const auto [it, added] = by_name_.try_emplace({tenant, priority}, static_cast<int>(flows_.size()));
  if (added) flows_.emplace_back();
  flows_[it->second].per_row = 1 / (weight * std::exp2(priority));
  return it->second;
}

void FairQueue::set_weight(int32_t tenant, double weight) {
  for (const auto& [name, at] : by_name_) {
    if (name.first == tenant) flows_[at].per_row = 1 / (weight * std::exp2(name.second));
  }
}

void FairQueue::activate(Flow& f) {
  if (f.waiting.empty()) f.time = std::max(f.time, time_);
  ordered_ = false;
  ++size_;
}

void FairQueue::push_back(int flow, Sequence* s) {
  activate(flows_[flow]);
  flows_[flow].waiting.push_back(s);
}

void FairQueue::push_front(int flow, Sequence* s) {
  activate(flows_[flow]);
  flows_[flow].waiting.push_front(s);
}

void FairQueue::push_by_arrival(int flow, Sequence* s) {
  activate(flows_[flow]);
  auto& q = flows_[flow].waiting;
  auto at = q.end();
  while (at != q.begin() && (*std::prev(at))->arrival > s->arrival) --at;
  q.insert(at, s);
}

void FairQueue::remove(int flow, Sequence* s) {
  auto& q = flows_[flow].waiting;
  const auto it = std::ranges::find(q, s);
  if (it == q.end()) return;
  q.erase(it);
  ordered_ = false;
  --size_;
}

Sequence* FairQueue::candidate(int rank) {
  if (!ordered_) {
    order_.clear();
    for (int i = 0; i < static_cast<int>(flows_.size()); ++i) {
      if (!flows_[i].waiting.empty()) order_.push_back(i);
    }
    std::ranges::sort(order_, [this](int a, int b) {
      return flows_[a].time != flows_[b].time ? flows_[a].time < flows_[b].time : a < b;
    });
    ordered_ = true;
  }
  return rank < static_cast<int>(order_.size()) ? flows_[order_[rank]].waiting.front() : nullptr;
}

void FairQueue::take(int flow) {
  Flow& f = flows_[flow];
  f.waiting.pop_front();
  time_ = std::max(time_, f.time);
  ordered_ = false;
  --size_;
}

}  // namespace deepinfer::sched
