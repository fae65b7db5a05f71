#include "grammar/matcher.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

#include "grammar/machine.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kLanesMax = 64;
constexpr uint32_t kStateMagic = 0x314d4744;  // "DGM1"

void put_u32(std::string& out, uint32_t v) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(v >> (8 * i)));
}

bool get_u32(std::string_view& in, uint32_t* v) {
  if (in.size() < 4) return false;
  *v = 0;
  for (int i = 0; i < 4; ++i)
    *v |= static_cast<uint32_t>(static_cast<unsigned char>(in[static_cast<size_t>(i)])) << (8 * i);
  in.remove_prefix(4);
  return true;
}

}  // namespace

// What one thread works out.
struct Compiled::Lane {
  // thread: 0 until one comes.
  Lane(Grammar g, const Vocabulary& v, const Limits& l, uint64_t user)
      : thread(user), grammar(std::move(g)), machine(grammar.impl(), v.impl(), l), bytes(machine.memory_bytes()) {}

  std::atomic<uint64_t> thread;
  std::mutex mutex;  // over what follows; contended only beyond kLanesMax threads
  Grammar grammar;
  Machine machine;
  uint64_t epoch = 1;  // counts the resets of the machine: nodes of an older one are gone
  std::atomic<uint64_t> bytes;
};

struct Compiled::Impl {
  Impl(Grammar g, std::shared_ptr<const Vocabulary> v, const Limits& l) : vocabulary(std::move(v)), limits(l) {
    lanes[0] = new Lane(std::move(g), *vocabulary, limits, 0);
    count = 1;
  }
  ~Impl() {
    for (size_t i = 0; i < count; ++i) delete lanes[i];
  }

  static uint64_t this_thread() {
    static std::atomic<uint64_t> next{1};
    thread_local const uint64_t id = next++;
    return id;
  }

  // The lane of the calling thread; made when the thread comes first.
  Lane& lane() {
    const uint64_t me = this_thread();
    uint64_t nobody = 0;
    if (lanes[0]->thread.load(std::memory_order_relaxed) == 0) lanes[0]->thread.compare_exchange_strong(nobody, me);
    for (size_t i = 0, n = count.load(std::memory_order_acquire); i < n; ++i) {
      if (lanes[i]->thread == me) return *lanes[i];
    }
    std::lock_guard lock(growing);
    const size_t n = count;
    if (n == kLanesMax) return *lanes[me % kLanesMax];
    auto copied = std::make_unique<Grammar::Impl>();
    {
      std::lock_guard first(lanes[0]->mutex);
      const Grammar::Impl& from = lanes[0]->grammar.impl();
      copied->exprs.copy(from.exprs, lanes[0]->machine.mark());
      copied->rules = from.rules;
      copied->root = from.root;
      copied->uses_unique = from.uses_unique;
    }
    lanes[n] = new Lane(Grammar(std::move(copied)), *vocabulary, limits, me);
    count.store(n + 1, std::memory_order_release);
    return *lanes[n];
  }

  std::shared_ptr<const Vocabulary> vocabulary;
  Limits limits;
  std::mutex growing;
  std::array<Lane*, kLanesMax> lanes{};
  std::atomic<size_t> count{0};
};

Compiled::Compiled(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Compiled::~Compiled() = default;

Result<std::shared_ptr<Compiled>> Compiled::create(Grammar grammar, std::shared_ptr<const Vocabulary> vocabulary,
                                                   const Limits& limits) {
  Limits kept = limits;
  kept.cancel = nullptr;  // belongs to the compile
  return std::shared_ptr<Compiled>(
      new Compiled(std::make_unique<Impl>(std::move(grammar), std::move(vocabulary), kept)));
}

const Vocabulary& Compiled::vocabulary() const { return *impl_->vocabulary; }

uint64_t Compiled::memory_bytes() const {
  uint64_t bytes = 0;
  for (size_t i = 0, n = impl_->count.load(std::memory_order_acquire); i < n; ++i) bytes += impl_->lanes[i]->bytes;
  return bytes;
}

Matcher::Matcher(std::shared_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}

// The calling thread's lane, locked, with node_ valid for its machine. Its size is noted when the work is done.
class Matcher::Work {
 public:
  explicit Work(Matcher& m) : lane_(m.compiled_->impl().lane()), lock_(lane_.mutex), ok_(m.settle(lane_)) {}
  ~Work() { lane_.bytes.store(lane_.machine.memory_bytes(), std::memory_order_relaxed); }
  bool ok() const { return ok_; }
  Machine& machine() { return lane_.machine; }

 private:
  Compiled::Lane& lane_;
  std::lock_guard<std::mutex> lock_;
  bool ok_;
};

bool Matcher::settle(Compiled::Lane& lane) {
  lane.machine.clear_error();
  if (lane.machine.memory_bytes() > compiled_->impl().limits.memory_bytes_max) {
    lane.machine.reset();
    ++lane.epoch;
  }
  return (lane_ == &lane && epoch_ == lane.epoch) || replay(lane);
}

bool Matcher::replay(Compiled::Lane& lane) {
  Machine& machine = lane.machine;
  const Vocabulary& vocabulary = *compiled_->impl().vocabulary;
  NodeId node = machine.start();
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& s = steps_[i];
    s.node = node;
    machine.restart_work();
    std::string_view bytes;
    if (s.token == kBytesStep) {
      const size_t end = i + 1 < steps_.size() ? steps_[i + 1].text_size : text_.size();
      bytes = std::string_view(text_).substr(s.text_size, end - s.text_size);
    } else if (vocabulary.impl().is_end[s.token]) {
      continue;
    } else if (vocabulary.is_added(s.token)) {
      node = machine.step_token(node, s.token);
    } else {
      bytes = vocabulary.bytes(s.token);
    }
    for (unsigned char b : bytes) node = machine.step(node, b);
    if (node == kNodeDead || !machine.error().ok()) {
      status_ =
          machine.error().ok() ? make_error(Code::kInternal, "a grammar state cannot be replayed") : machine.error();
      return false;
    }
  }
  node_ = node;
  lane_ = &lane;
  epoch_ = lane.epoch;
  return true;
}

Status Matcher::fill_mask(std::span<uint32_t> mask) {
  Compiled::Impl& c = compiled_->impl();
  if (mask.size() != c.vocabulary->mask_words()) {
    return make_error(Code::kInternal, "a grammar mask has {} words instead of {}", mask.size(),
                      c.vocabulary->mask_words());
  }
  Work work(*this);
  if (!work.ok()) return status_;
  if (ended_) {
    std::fill(mask.begin(), mask.end(), 0u);
    return {};
  }
  work.machine().fill_mask(node_, mask);
  if (!work.machine().error().ok()) return status_ = work.machine().error();
  if (work.machine().accepts(node_)) {
    for (uint32_t t : c.vocabulary->end_tokens()) mask[t >> 5] |= 1u << (t & 31);
  }
  return {};
}

bool Matcher::accept(uint32_t token) {
  Compiled::Impl& c = compiled_->impl();
  if (token >= c.vocabulary->size() || ended_) return false;
  Work work(*this);
  if (!work.ok()) return false;
  Machine& machine = work.machine();
  const auto& impl = c.vocabulary->impl();
  NodeId node = node_;
  if (impl.is_end[token]) {
    if (!machine.accepts(node)) return false;
    ended_ = true;
  } else if (impl.entries[token].added) {
    node = machine.step_token(node, token);
  } else if (impl.entries[token].bytes.empty()) {
    return false;
  } else {
    for (unsigned char b : impl.entries[token].bytes) {
      node = machine.step(node, b);
      if (node == kNodeDead) break;
    }
  }
  if (!machine.error().ok()) status_ = machine.error();
  if (node == kNodeDead) return false;
  steps_.push_back({node_, token, static_cast<uint32_t>(text_.size())});
  node_ = node;
  return true;
}

bool Matcher::accept_bytes(std::string_view bytes) {
  if (ended_) return false;
  Work work(*this);
  if (!work.ok()) return false;
  NodeId node = node_;
  for (unsigned char b : bytes) {
    node = work.machine().step(node, b);
    if (node == kNodeDead) break;
  }
  if (!work.machine().error().ok()) status_ = work.machine().error();
  if (node == kNodeDead) return false;
  steps_.push_back({node_, kBytesStep, static_cast<uint32_t>(text_.size())});
  text_ += bytes;
  node_ = node;
  return true;
}

bool Matcher::is_complete() {
  if (ended_) return true;
  Work work(*this);
  return work.ok() && work.machine().accepts(node_);
}

void Matcher::rollback(size_t tokens) {
  tokens = std::min(tokens, steps_.size());
  if (tokens == 0) return;
  const Step& s = steps_[steps_.size() - tokens];
  node_ = s.node;  // if the machine was reset since, the next use replays
  text_.resize(s.text_size);
  steps_.resize(steps_.size() - tokens);
  ended_ = false;
}

std::string Matcher::forced_bytes(size_t max_bytes) {
  std::string out;
  if (ended_) return out;
  Work work(*this);
  if (!work.ok()) return out;
  NodeId node = node_;
  size_t whole = 0;  // bytes up to a character border
  while (out.size() < max_bytes) {
    if (work.machine().accepts(node) || work.machine().has_tokens(node)) break;
    const ByteSet& first = work.machine().first(node);
    if (first.size() != 1) break;
    uint8_t byte = 0;
    first.for_each([&](uint8_t b) { byte = b; });
    if ((byte & 0xc0) != 0x80) whole = out.size();
    out.push_back(static_cast<char>(byte));
    node = work.machine().step(node, byte);
    if (node == kNodeDead || !work.machine().error().ok()) return {};
  }
  // The last character is whole if the bytes that its first one announces are there.
  if (!out.empty()) {
    const auto lead = static_cast<unsigned char>(out[whole]);
    const size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (out.size() - whole < size) out.resize(whole);
  }
  return out;
}

std::string Matcher::serialise() const {
  std::string out;
  put_u32(out, kStateMagic);
  put_u32(out, static_cast<uint32_t>(steps_.size()));
  put_u32(out, static_cast<uint32_t>(text_.size()));
  for (const Step& s : steps_) {
    put_u32(out, s.token);
    if (s.token == kBytesStep) put_u32(out, s.text_size);
  }
  return out + text_;
}

Result<Matcher> Matcher::restore(std::shared_ptr<Compiled> compiled, std::string_view state) {
  const auto bad = [] {
    return make_error(Code::kDataLoss, "the saved grammar state is damaged or belongs to another grammar");
  };
  uint32_t magic = 0, steps = 0, text_size = 0;
  if (!get_u32(state, &magic) || magic != kStateMagic || !get_u32(state, &steps) || !get_u32(state, &text_size))
    return bad();
  if (steps > state.size() / 4) return bad();
  Matcher m(std::move(compiled));
  Compiled::Impl& c = m.compiled_->impl();
  m.steps_.reserve(steps);
  uint32_t text_at = 0;
  for (uint32_t i = 0; i < steps; ++i) {
    Step s{kNodeDead, 0, text_at};
    if (!get_u32(state, &s.token)) return bad();
    if (s.token == kBytesStep) {
      if (!get_u32(state, &s.text_size) || s.text_size < text_at || s.text_size > text_size) return bad();
      text_at = s.text_size;
    } else if (s.token >= c.vocabulary->size()) {
      return bad();
    } else if (c.vocabulary->impl().is_end[s.token]) {
      if (i + 1 != steps) return bad();
      m.ended_ = true;
    }
    m.steps_.push_back(s);
  }
  if (state.size() != text_size) return bad();
  m.text_ = state;
  // Steps of tokens carry the size of the text before them.
  uint32_t following = text_size;
  for (size_t i = m.steps_.size(); i-- > 0;) {
    if (m.steps_[i].token == kBytesStep) following = m.steps_[i].text_size;
    else m.steps_[i].text_size = following;
  }
  {
    Work work(m);
    if (!work.ok()) return m.status_.code() == Code::kInternal ? bad() : m.status_;
    if (m.ended_ && !work.machine().accepts(m.node_)) return bad();
  }
  return m;
}

}  // namespace deepinfer::grammar
