#include "kv/sequence_state.h"

#include <cstring>

#include "kv/record.h"

namespace deepinfer::kv {
namespace {

constexpr char kMagic[4] = {'D', 'I', 'S', 'Q'};
constexpr size_t kHeaderBytes = 16;

class Writer {
 public:
  template <class T>
  void number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i)
      out.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  std::vector<std::byte> out;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  template <class T>
  void number(T* value) {
    uint64_t v = 0;
    if (left() < sizeof(T)) {
      ok_ = false;
      return;
    }
    for (size_t i = 0; i < sizeof(T); ++i) v |= std::to_integer<uint64_t>(in_[at_ + i]) << (8 * i);
    at_ += sizeof(T);
    *value = static_cast<T>(v);
  }
  // A count of items of at least item_bytes each; 0 if so many cannot be there.
  uint32_t count(size_t item_bytes) {
    uint32_t n = 0;
    number(&n);
    if (n > left() / item_bytes) ok_ = false;
    return ok_ ? n : 0;
  }
  std::span<const std::byte> take(size_t n) {
    const auto s = in_.subspan(at_, n);
    at_ += n;
    return s;
  }
  size_t left() const { return in_.size() - at_; }
  bool done() const { return ok_ && left() == 0; }

 private:
  std::span<const std::byte> in_;
  size_t at_ = 0;
  bool ok_ = true;
};

// The fields of fixed size, in the order of the byte form.
template <class State, class F>
void for_each_number(State& s, F&& f) {
  f(s.id);
  f(s.seed);
  f(s.sample);
  f(s.prompt_tokens);
  f(s.decoder_begin);
  f(s.window_begin);
  f(s.cached);
  f(s.computed);
}

}  // namespace

std::vector<std::byte> serialize(const SequenceState& state) {
  Writer w;
  w.out.resize(kHeaderBytes);
  for_each_number(state, [&](auto value) { w.number(value); });
  w.number(static_cast<uint32_t>(state.tokens.size()));
  for (int32_t t : state.tokens) w.number(t);
  w.number(static_cast<uint32_t>(state.sections.size()));
  for (const StateSection& s : state.sections) {
    w.number(s.kind);
    w.number(static_cast<uint32_t>(s.bytes.size()));
    w.out.insert(w.out.end(), s.bytes.begin(), s.bytes.end());
  }
  Writer header;
  for (char c : kMagic) header.number(static_cast<uint8_t>(c));
  header.number(kSequenceStateVersion);
  header.number(kv_checksum(std::span<const std::byte>(w.out).subspan(kHeaderBytes)));
  std::memcpy(w.out.data(), header.out.data(), kHeaderBytes);
  return std::move(w.out);
}

Result<SequenceState> parse_sequence_state(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), kMagic, 4) != 0) {
    return make_error(Code::kDataLoss, "sequence state: it is cut short or something else");
  }
  uint32_t version = 0;
  uint64_t checksum = 0;
  Reader header(bytes.subspan(4, 12));
  header.number(&version);
  header.number(&checksum);
  if (version != kSequenceStateVersion) {
    return make_error(Code::kUnsupported, "sequence state: version {}; this program reads version {}", version,
                      kSequenceStateVersion);
  }
  if (checksum != kv_checksum(bytes.subspan(kHeaderBytes)))
    return make_error(Code::kDataLoss, "sequence state: its checksum does not fit");

  Reader r(bytes.subspan(kHeaderBytes));
  SequenceState s;
  for_each_number(s, [&](auto& value) { r.number(&value); });
  s.tokens.resize(r.count(sizeof(int32_t)));
  for (int32_t& t : s.tokens) r.number(&t);
  s.sections.resize(r.count(8));
  for (StateSection& section : s.sections) {
    r.number(&section.kind);
    const auto part = r.take(r.count(1));
    section.bytes.assign(part.begin(), part.end());
  }
  if (!r.done()) return make_error(Code::kDataLoss, "sequence state: its lengths do not fit");
  return s;
}

}  // namespace deepinfer::kv
