// Questions about states: can they be finished, how do they look when counts beyond a length are forgotten; dropping
// what was made.
#include <algorithm>
#include <deque>

#include "grammar/rx.h"

namespace deepinfer::grammar {
const std::vector<RxId>& RxArena::successors(RxId r) {
  auto it = successors_.find(r);
  if (it != successors_.end()) return it->second;
  std::vector<RxId> next;
  ByteSet open = ByteSet::all();
  while (!open.empty() && !error_) {
    uint8_t byte = 0;
    for (int w = 0; w < 4; ++w) {
      if (open.words[w] != 0) {
        byte = static_cast<uint8_t>(w * 64 + std::countr_zero(open.words[w]));
        break;
      }
    }
    ByteSet same = ByteSet::all();
    const RxId d = derive(r, byte, same, 0);
    same.add(byte);
    open = open & ~same;
    if (d != kRxNone && std::find(next.begin(), next.end(), d) == next.end()) next.push_back(d);
  }
  memory_ += 64 + next.size() * sizeof(RxId);
  return successors_.emplace(r, std::move(next)).first->second;
}

// Whether an intersection is all strings of an infinite set but finitely many.
bool RxArena::is_cofinite(RxId r, RxId* rest) const {
  const RxNode& n = nodes_[r];
  if (n.kind != RxKind::kAnd) return false;
  int infinite = 0;
  for (RxId id : list(n)) {
    const RxNode& part = nodes_[id];
    if ((part.flags & (kRxInfinite | kRxCheck)) == kRxInfinite) {
      ++infinite;
      *rest = id;
    } else if (part.kind != RxKind::kNot || !(nodes_[part.a].flags & kRxFinite)) {
      return false;
    }
  }
  return infinite == 1;
}

// 1 or 0 if the parts of an expression tell whether it is empty, else -1.
int RxArena::alive_by_parts(RxId r) {
  const RxNode n = nodes_[r];
  switch (n.kind) {
    case RxKind::kAnd: {
      RxId rest = kRxNone;
      return is_cofinite(r, &rest) ? 1 : -1;
    }
    case RxKind::kConcat: {
      RxId at = r;
      for (; nodes_[at].kind == RxKind::kConcat; at = nodes_[at].b) {
        if (!alive(nodes_[at].a)) return 0;
      }
      return alive(at);
    }
    case RxKind::kRepeat:
      return alive(n.a);
    case RxKind::kAlt:
      for (uint32_t i = 0; i < n.b; ++i) {
        if (alive(lists_[n.a + i])) return 1;
      }
      return 0;
    default:
      return -1;
  }
}

bool RxArena::takes_any_json_text(RxId r) const {
  const RxNode& n = nodes_[r];
  switch (n.kind) {
    case RxKind::kRepeat:
      return n.c == kRxUnbounded && n.a == RxBase::get().json_char;
    case RxKind::kConcat:
      return takes_any_json_text(n.a) && alive_[n.b] == 1;
    case RxKind::kAlt: {
      const auto parts = list(n);
      return std::any_of(parts.begin(), parts.end(), [this](RxId id) { return takes_any_json_text(id); });
    }
    case RxKind::kAnd: {
      RxId rest = kRxNone;
      return is_cofinite(r, &rest) && takes_any_json_text(rest);
    }
    default:
      return false;
  }
}

bool RxArena::ends_with_quote(RxId r) const {
  const RxNode& n = nodes_[r];
  if (n.kind != RxKind::kConcat) return false;
  const RxNode& last = nodes_[n.b];
  return nodes_[n.a].flags & kRxJsonText && last.kind == RxKind::kLiteral && last.b == 1 && pool_[last.a] == '"';
}

bool RxArena::alive(RxId r) {
  if (alive_[r] >= 0) return alive_[r] != 0;
  if (nullable(r)) {
    alive_[r] = 1;
    return true;
  }
  if (const int known = alive_by_parts(r); known >= 0) {
    if (!error_) alive_[r] = static_cast<int8_t>(known);
    return known != 0;
  }
  // Breadth first to the nearest state that may end; all states met are dead if there is none.
  std::deque<RxId> queue{r};
  std::unordered_map<RxId, RxId> parent{{r, r}};
  RxId found = kRxNone;
  while (!queue.empty() && found == kRxNone) {
    const RxId s = queue.front();
    queue.pop_front();
    for (RxId t : successors(s)) {
      if (alive_[t] == 0 || !parent.emplace(t, s).second) continue;
      if (alive_[t] == 1 || nullable(t)) {
        found = t;
        break;
      }
      queue.push_back(t);
    }
    if (budget_ != nullptr && !budget_->spend(1 + successors(s).size()).ok()) error_ = true;
    if (error_ || parent.size() > kRxSearchStatesMax) {
      error_ = true;
      return true;
    }
  }
  if (found == kRxNone) {
    for (const auto& [state, from] : parent) alive_[state] = 0;
    return false;
  }
  for (RxId s = found;; s = parent.at(s)) {
    alive_[s] = 1;
    if (s == r) break;
  }
  return true;
}

RxId RxArena::truncate(RxId r, uint32_t length) {
  const RxNode n = nodes_[r];
  // Aliveness of intersections depends on counts far away, so these keep them.
  if (n.flags & kRxCheck) return r;
  if (n.kind != RxKind::kConcat && n.kind != RxKind::kAlt && n.kind != RxKind::kRepeat) return r;
  const uint64_t key = static_cast<uint64_t>(length) << 32 | r;
  if (const uint32_t* known = truncated_.find(key)) return *known;
  if (n.kind == RxKind::kConcat) return truncate_list(r, length);
  RxId out = r;
  if (n.kind == RxKind::kAlt) {
    std::vector<RxId> parts(list(n).begin(), list(n).end());
    for (RxId& id : parts) id = truncate(id, length);
    out = alt(parts);
  } else if (!nullable(n.a)) {
    const RxId unit = truncate(n.a, length);
    const uint32_t min = std::min(n.b, length + 1);
    const uint32_t max = n.c > length ? kRxUnbounded : n.c;
    out = repeat(unit, min, max);
  }
  truncated_[key] = out;
  memory_ += 32;
  return out;
}

// As truncate(), for a sequence: from its end, without recursion along it; all its tails are remembered.
RxId RxArena::truncate_list(RxId r, uint32_t length) {
  const auto key_of = [length](RxId id) { return static_cast<uint64_t>(length) << 32 | id; };
  std::vector<RxId> tails;
  RxId at = r;
  while (nodes_[at].kind == RxKind::kConcat && truncated_.find(key_of(at)) == nullptr) {
    tails.push_back(at);
    at = nodes_[at].b;
  }
  RxId out = truncate(at, length);
  for (size_t i = tails.size(); i-- > 0;) {
    out = concat(truncate(nodes_[tails[i]].a, length), out);
    truncated_[key_of(tails[i])] = out;
    memory_ += 32;
  }
  return out;
}

void RxArena::copy(const RxArena& other, const Mark& mark) {
  nodes_ = other.nodes_;
  alive_ = other.alive_;
  table_ = other.table_;
  pool_ = other.pool_;
  lists_ = other.lists_;
  sets_ = other.sets_;
  strings_ = other.strings_;
  dfas_ = other.dfas_;
  dfa_sets_ = other.dfa_sets_;
  char_dfas_[0] = other.char_dfas_[0];
  char_dfas_[1] = other.char_dfas_[1];
  literals_ = other.literals_;
  string_sets_ = other.string_sets_;
  rewind(mark);
}

RxArena::Mark RxArena::mark() const {
  return {nodes_.size(), lists_.size(), sets_.size(), strings_.size(), dfas_.size()};
}

void RxArena::rewind(const Mark& mark) {
  const RxArena& base = RxBase::arena();
  nodes_.resize(mark.nodes);
  lists_.resize(mark.lists);
  sets_.resize(mark.sets);
  strings_.resize(mark.strings);
  dfas_.resize(mark.dfas);
  dfa_sets_.resize(mark.dfas);
  alive_.resize(mark.nodes);
  rows_ = base.rows_;
  rows_.resize(mark.nodes, nullptr);
  first_index_ = base.first_index_;
  first_index_.resize(mark.nodes, 0);
  firsts_ = base.firsts_;
  truncated_ = base.truncated_;
  successors_.clear();
  row_chunks_.clear();
  rows_left_ = 0;
  memory_ = mark.nodes * (sizeof(RxNode) + 30) + lists_.size() * sizeof(RxId) + pool_.size();
  table_.assign(table_.size(), UINT32_MAX);
  for (RxId id = 0; id < nodes_.size(); ++id) {
    size_t i = hash(nodes_[id]) & (table_.size() - 1);
    while (table_[i] != UINT32_MAX) i = (i + 1) & (table_.size() - 1);
    table_[i] = id;
  }
}

}  // namespace deepinfer::grammar
