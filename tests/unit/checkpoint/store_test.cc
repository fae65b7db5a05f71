// The expert cache and the row reader on a file of known bytes: what leaves, what is read ahead, and that every byte
// that is given out is the right one.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <random>

#include "base/file.h"
#include "checkpoint/store/expert_cache.h"
#include "checkpoint/store/row_reader.h"
#include "checkpoint/store/store_plan.h"
#include "tests/support/forwarding_queue.h"
#include "tests/support/temp_dir.h"

namespace deepinfer::checkpoint {
namespace {

constexpr int kLayers = 3, kExperts = 20;
constexpr uint64_t kCodes = 9000, kScales = 700;  // of a part: neither whole pages

// Never 255, which is NaN in a scale.
uint8_t byte_at(uint64_t offset) { return static_cast<uint8_t>((offset * 0x9e3779b97f4a7c15u >> 56) % 255); }

class Store : public ::testing::Test {
 protected:
  void SetUp() override {
    const uint64_t bytes = 13 + uint64_t{kLayers} * kExperts * 3 * (kCodes + kScales) + kTableRows * (264 + 100);
    std::string content(bytes, '\0');
    for (uint64_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(byte_at(i));
    path_ = dir_.path() + "/weights";
    ASSERT_TRUE(write_file_atomically(path_, content).ok());
    reader_ = DirectReader::create({.depth = 16}).value();
    file_ = reader_->add_file(path_).value();
  }

  // As a safetensors file has them: scales of all experts in front, codes behind.
  std::vector<std::vector<ExpertCache::Places>> places() const {
    std::vector<std::vector<ExpertCache::Places>> out(kLayers);
    uint64_t number = 0;
    for (auto& layer : out) {
      for (int e = 0; e < kExperts; ++e, ++number) {
        ExpertCache::Places p;
        for (uint64_t i = 0; i < 3; ++i) {
          p[2 * i + 1] = {file_, 13 + (number * 3 + i) * kScales, kScales};
          p[2 * i] = {file_, 13 + uint64_t{kLayers} * kExperts * 3 * kScales + (number * 3 + i) * kCodes, kCodes};
        }
        layer.push_back(p);
      }
    }
    return out;
  }

  std::unique_ptr<ExpertCache> cache(int64_t slots, bool expect) {
    uint64_t slot = 0;
    for (uint64_t part : {kCodes, kScales}) slot += 3 * (io_aligned(part) + 2 * kIoAlignment);
    return ExpertCache::create({.slots = slots, .slot_bytes = slot, .half_life = 16, .expect = expect}, places(),
                               reader_.get())
        .value();
  }

  // Runs a layer and checks every byte; the experts in the order in which they came.
  std::vector<int32_t> run(ExpertCache& c, int layer, std::vector<int32_t> experts) {
    const auto where = places();
    std::vector<int32_t> order;
    c.begin(layer, experts);
    for (auto some = c.next(); !some.empty(); some = c.next()) {
      for (const ExpertCache::Arrived& a : some) {
        EXPECT_FALSE(a.failed);
        order.push_back(a.expert);
        for (size_t i = 0; i < ExpertAddress::kParts; ++i) {
          const ExpertCache::Place& p = where[static_cast<size_t>(layer)][static_cast<size_t>(a.expert)][i];
          for (uint64_t b = 0; b < p.bytes; ++b) {
            if (std::to_integer<uint8_t>(a.at.part[i][b]) != byte_at(p.offset + b)) {
              ADD_FAILURE() << "layer " << layer << " expert " << a.expert << " part " << i << " byte " << b;
              break;
            }
          }
        }
      }
    }
    std::vector<int32_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, experts);
    EXPECT_TRUE(c.take_error().ok());
    return order;
  }

  // Where among the reads an expert's first page is.
  std::ptrdiff_t place_of(const std::vector<uint64_t>& offsets, int layer, int expert) const {
    const uint64_t begin = places()[static_cast<size_t>(layer)][static_cast<size_t>(expert)][0].offset;
    return std::find(offsets.begin(), offsets.end(), begin / kIoAlignment * kIoAlignment) - offsets.begin();
  }

  static constexpr uint64_t kTableRows = 5000;
  testing::TempDir dir_;
  std::string path_;
  int file_ = 0;
  std::unique_ptr<DirectReader> reader_;
};

TEST_F(Store, GivesTheRightBytesWhateverFits) {
  std::mt19937 random(1);
  for (const int64_t slots : {2, 5, 17, 60}) {
    const auto c = cache(slots, slots % 2 == 1);
    for (int step = 0; step < 40; ++step) {
      for (int layer = 0; layer < kLayers; ++layer) {
        std::vector<int32_t> ids(kExperts);
        for (int i = 0; i < kExperts; ++i) ids[static_cast<size_t>(i)] = i;
        std::shuffle(ids.begin(), ids.end(), random);
        ids.resize(step % 10 == 0 ? kExperts : 1 + random() % 6);  // now and then more than there are slots
        std::sort(ids.begin(), ids.end());
        run(*c, layer, ids);
      }
    }
    c->settle();
    const ExpertStats s = c->stats();
    EXPECT_EQ(s.uses, s.hits + s.reads + s.late) << slots;
    reader_.reset();
    reader_ = DirectReader::create({.depth = 16}).value();
    file_ = reader_->add_file(path_).value();
  }
}

TEST_F(Store, FrequentExpertsOutliveAScan) {
  const auto c = cache(12, false);
  for (int step = 0; step < 10; ++step) run(*c, 0, {1, 2, 3, 4});
  std::vector<int32_t> all(kExperts);
  for (int i = 0; i < kExperts; ++i) all[static_cast<size_t>(i)] = i;
  run(*c, 1, all);
  run(*c, 2, all);
  const uint64_t hits = c->stats().hits;
  run(*c, 0, {1, 2, 3, 4});
  EXPECT_EQ(c->stats().hits, hits + 4);
  reader_.reset();
}

TEST_F(Store, RecentExpertsReplaceThoseOfLongAgo) {
  const auto c = cache(6, false);
  for (int step = 0; step < 30; ++step) run(*c, 0, {1, 2, 3});
  for (int step = 0; step < 150; ++step) run(*c, 0, {7, 8, 9, 10, 11, 12});
  const uint64_t hits = c->stats().hits;
  run(*c, 0, {7, 8, 9, 10, 11, 12});
  EXPECT_EQ(c->stats().hits, hits + 6);
  reader_.reset();
}

TEST_F(Store, WhatIsThereComesFirst) {
  const auto c = cache(10, false);
  run(*c, 0, {3, 5});
  EXPECT_EQ(run(*c, 0, {1, 3, 5, 9}).size(), 4u);
  c->begin(0, std::vector<int32_t>{0, 3, 5});
  const auto first = c->next();
  ASSERT_GE(first.size(), 2u);
  EXPECT_TRUE(first[0].expert == 3 || first[0].expert == 5);
  while (!c->next().empty()) {
  }
  reader_.reset();
}

TEST_F(Store, ReadsAheadWhatTheStepBeforeChose) {
  const auto c = cache(5, true);
  for (int i = 0; i < 10; ++i) run(*c, 1, {4, 6});
  std::vector<int32_t> all(kExperts);
  for (int i = 0; i < kExperts; ++i) all[static_cast<size_t>(i)] = i;
  run(*c, 2, all);  // more than there are slots: pushes everything out
  run(*c, 0, {0});
  c->settle();
  EXPECT_EQ(c->stats().expected_reads, 1u);  // a quarter of the slots at most
  const uint64_t reads = c->stats().reads;
  run(*c, 1, {4, 6});
  EXPECT_EQ(c->stats().expected_used, 1u);
  EXPECT_EQ(c->stats().reads, reads + 1);
  reader_.reset();
}

TEST_F(Store, GuessesOfTheBackendAreRead) {
  const auto c = cache(16, true);
  run(*c, 0, {1});
  c->expect(1, std::vector<int32_t>{3, 4, 5, 6, 7, 8});
  c->settle();
  EXPECT_EQ(c->stats().router_reads, 4u);  // a quarter of the slots
  run(*c, 1, {3, 4, 11});
  const ExpertStats s = c->stats();
  EXPECT_EQ(s.router_used, 2u);
  EXPECT_EQ(s.hits, 2u);
  EXPECT_EQ(s.reads, 2u);
  reader_.reset();
}

// Holds what it has been given until it is opened.
class GatedQueue : public testing::ForwardingQueue {
 public:
  GatedQueue(std::unique_ptr<IoQueue> inner, std::atomic<bool>* open, std::vector<uint64_t>* offsets = nullptr)
      : ForwardingQueue(std::move(inner)), open_(open), offsets_(offsets) {}
  bool read(int fd, std::span<std::byte> into, uint64_t offset, uint64_t tag) override {
    const bool queued = ForwardingQueue::read(fd, into, offset, tag);
    if (queued && offsets_ != nullptr) offsets_->push_back(offset);
    return queued;
  }
  size_t wait(std::span<Done> done) override {
    open_->wait(false);
    return ForwardingQueue::wait(done);
  }

 private:
  std::atomic<bool>* open_;
  std::vector<uint64_t>* offsets_;
};

std::unique_ptr<DirectReader> gated_reader(std::atomic<bool>* open, std::vector<uint64_t>* offsets = nullptr) {
  return DirectReader::create({.depth = 1, .make_queue = [=](const IoQueue::Options& o) {
                                 return Result<std::unique_ptr<IoQueue>>(
                                     std::make_unique<GatedQueue>(IoQueue::create(o).value(), open, offsets));
                               }}).value();
}

TEST_F(Store, UnsureGuessesAreReadLast) {
  std::atomic<bool> open{true};
  std::vector<uint64_t> offsets;
  reader_ = gated_reader(&open, &offsets);
  file_ = reader_->add_file(path_).value();
  const auto c = cache(16, true);
  run(*c, 0, {1});
  open = false;
  c->expect(1, std::vector<int32_t>{3, 4}, 1);
  c->expect(2, std::vector<int32_t>{5}, 1);
  open = true;
  open.notify_all();
  c->settle();
  const auto first_read = [&](int layer, int expert) { return place_of(offsets, layer, expert); };
  EXPECT_LT(first_read(1, 3), first_read(2, 5));
  EXPECT_LT(first_read(2, 5), first_read(1, 4));
  EXPECT_LT(first_read(1, 4), std::ssize(offsets));
  reader_.reset();
}

TEST_F(Store, PiecesAreReadInTheOrderOfTheirClasses) {
  using Class = DirectReader::Class;
  std::atomic<bool> open{false};
  std::vector<uint64_t> offsets;
  reader_ = gated_reader(&open, &offsets);
  file_ = reader_->add_file(path_).value();
  AlignedBuffer memory(5 * kIoAlignment);
  std::atomic<int> left{5};
  // The first one is in flight alone; the others are queued the wrong way round.
  constexpr std::array kOrder = {Class::kNeeded, Class::kSpare, Class::kLikely, Class::kWanted, Class::kNeeded};
  for (uint64_t i = 0; const Class c : kOrder) {
    const DirectReader::Piece piece{
        file_, i * kIoAlignment, {memory.data() + i * kIoAlignment, kIoAlignment}, kIoAlignment};
    const auto ended = [](void* context, uint64_t, const Status& status) {
      EXPECT_TRUE(status.ok());
      auto* n = static_cast<std::atomic<int>*>(context);
      if (--*n == 0) n->notify_all();
    };
    reader_->read(c, {&piece, 1}, i++, ended, &left);
  }
  open = true;
  open.notify_all();
  for (int n = left; n > 0; n = left) left.wait(n);
  std::vector<uint64_t> expected;
  for (const uint64_t page : {0, 4, 3, 2, 1}) expected.push_back(page * kIoAlignment);
  EXPECT_EQ(offsets, expected);
  reader_.reset();
}

TEST_F(Store, WrongGuessesAreReadNoFurther) {
  std::atomic<bool> open{true};
  reader_ = gated_reader(&open);
  file_ = reader_->add_file(path_).value();
  const auto c = cache(16, true);
  run(*c, 0, {1});
  open = false;
  const uint64_t before = reader_->bytes_read();
  c->expect(1, std::vector<int32_t>{3, 4, 5});
  c->expect(1, std::vector<int32_t>{5, 6});  // one piece of 3 may be in flight, nothing of 4 is
  open = true;
  open.notify_all();
  run(*c, 1, {5, 9});
  c->settle();
  const ExpertStats s = c->stats();
  EXPECT_EQ(s.router_used, 1u);
  EXPECT_LE(s.router_reads, 3u);  // 3, 5 and 6
  EXPECT_EQ(s.reads, 2u);
  const uint64_t expert = 3 * (io_aligned(kCodes) + io_aligned(kScales) + 2 * kIoAlignment);
  EXPECT_LE(reader_->bytes_read() - before, 4 * expert);
  run(*c, 1, {3, 4});
  reader_.reset();
}

// Guesses that do not come true end, and are tried again later.
TEST_F(Store, BadGuessesPause) {
  const auto c = cache(8, true);
  for (int step = 0; step < 200; ++step) {
    c->expect(1, std::vector<int32_t>{(2 * step) % 10, (2 * step + 1) % 10});
    run(*c, 1, {15, 16, 17, 18, 19});
    for (int i = 0; i < 4; ++i) run(*c, 0, {0, 1, 2, 3, 4, 5});  // pushes them out
  }
  EXPECT_LT(c->stats().router_reads, 100u);
  reader_.reset();
}

// Guesses that are taken back right after the others were judged are no reason to pause.
TEST_F(Store, GuessesTakenBackAreNotBadOnes) {
  std::atomic<bool> open{true};
  reader_ = gated_reader(&open);
  file_ = reader_->add_file(path_).value();
  const auto c = cache(16, true);
  int good = 0;
  for (int round = 0; c->stats().router_reads < 22; ++round) {
    const int layer = round % kLayers, expert = round / kLayers % kExperts;
    c->expect(layer, std::vector<int32_t>{expert});
    c->settle();
    run(*c, layer, {expert});
    ++good;
    ASSERT_LT(good, 1000);
  }
  const int layer = good % kLayers, expert = good / kLayers % kExperts;
  run(*c, layer, {expert});
  open = false;
  // The first one's first piece is in flight, so the others can be taken back.
  c->expect(layer, std::vector<int32_t>{(expert + 1) % kExperts, (expert + 2) % kExperts, (expert + 3) % kExperts});
  c->expect((layer + 1) % kLayers, {});  // judges
  c->expect(layer, {});
  const uint64_t before = c->stats().router_reads;
  c->expect(layer, std::vector<int32_t>{(expert + 4) % kExperts});
  EXPECT_EQ(c->stats().router_reads, before + 1);
  open = true;
  open.notify_all();
  c->settle();
  reader_.reset();
}

TEST_F(Store, WarmsUpToTheLastSlot) {
  const auto c = cache(25, false);
  c->warm_up();
  for (int i = 0; i < 1000 && c->stats().slots_used < 25; ++i) c->settle();
  EXPECT_EQ(c->stats().slots_used, 25);
  EXPECT_EQ(c->stats().warm_reads, 25u);
  run(*c, 0, {0, 1, 2, 3});
  EXPECT_EQ(c->stats().hits, 4u);
  reader_.reset();
}

TEST_F(Store, RowsAreTheRightOnes) {
  const uint64_t codes = 13 + uint64_t{kLayers} * kExperts * 3 * (kCodes + kScales);
  RowReader::Table table{.codes = {file_, codes, 256}, .scales = {file_, codes + kTableRows * 256, 8}};
  table.rows = kTableRows;
  table.cache_bytes = 200 * 270;
  RowReader::Table plain{.codes = {file_, codes + kTableRows * 264, 100}};
  plain.rows = kTableRows;
  plain.cache_bytes = 1000;
  const auto rows = RowReader::create({table, plain}, reader_.get()).value();
  std::mt19937 random(2);
  for (int step = 0; step < 30; ++step) {
    std::vector<int32_t> a(step % 7 == 0 ? 2000 : 24), b(step % 5);
    for (int32_t& id : a) id = static_cast<int32_t>(random() % (step % 3 == 0 ? 20 : kTableRows));
    for (int32_t& id : b) id = static_cast<int32_t>(random() % kTableRows);
    rows->request(1, b);
    rows->request(0, a);
    const std::byte* got = rows->wait(0);
    for (size_t i = 0; i < a.size(); ++i) {
      for (uint64_t k = 0; k < 264; ++k) {
        const auto id = static_cast<uint64_t>(a[i]);
        const uint64_t at = k < 256 ? codes + id * 256 + k : codes + kTableRows * 256 + id * 8 + (k - 256);
        ASSERT_EQ(std::to_integer<uint8_t>(got[i * rows->stride(0) + k]), byte_at(at)) << step << " " << i << " " << k;
      }
    }
    got = rows->wait(1);
    for (size_t i = 0; i < b.size(); ++i) {
      const uint64_t at = codes + kTableRows * 264 + static_cast<uint64_t>(b[i]) * 100;
      for (uint64_t k = 0; k < 100; ++k)
        ASSERT_EQ(std::to_integer<uint8_t>(got[i * rows->stride(1) + k]), byte_at(at + k));
    }
  }
  EXPECT_TRUE(rows->take_error().ok());
  EXPECT_GT(rows->stats().hits, 0u);
  reader_.reset();
}

TEST(StorePlan, OfficialSizes) {
  const ModelConfig c = official_config();
  const StorePlan p = plan_store(c, {uint64_t{64} << 30}).value();
  EXPECT_EQ(p.experts, 40 * 384 + 3 * 128);
  EXPECT_EQ(p.expert_bytes, 18'800'640u);
  EXPECT_FALSE(p.table_resident[0]);
  EXPECT_FALSE(p.embedding_resident);
  EXPECT_GT(p.slots, 2'600);
  EXPECT_LE(p.total_bytes, uint64_t{64} << 30);
  const StorePlan all = plan_store(c, {uint64_t{600} << 30}).value();
  EXPECT_EQ(all.slots, all.experts);
  EXPECT_TRUE(all.table_resident[0] && all.table_resident[1] && all.embedding_resident);
  const Result<StorePlan> none = plan_store(c, {uint64_t{4} << 30});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace deepinfer::checkpoint
