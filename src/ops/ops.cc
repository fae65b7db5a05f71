#include "ops/ops.h"

namespace deepinfer::ops {

void Ops::run(const GraphKey&, const std::function<void()>& stages) { stages(); }

void Ops::hc_leave_enter(At leave, Sublayer left, At enter, Sublayer entered) {
  hc_leave(leave, left);
  hc_enter(enter, entered);
}

ExpertRows Ops::local_expert_rows(At at) const {
  ExpertRows rows;
  rows.rows = row_count(at.rows);
  rows.per_row = experts_per_row(at.layer);
  rows.input = buffer(Role::kSublayerIn);
  rows.ids = buffer(Role::kExpertIds);
  rows.weights = buffer(Role::kExpertWeights);
  rows.output = buffer(Role::kExpertOut);
  return rows;
}

}  // namespace deepinfer::ops
