#include "serve/response_store.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/temp_dir.h"

namespace deepinfer::serve {
namespace {

using recipe::Json;

std::vector<Json> items(const std::string& text) { return {Json(text)}; }

void put(ResponseStore& store, const std::string& id, const std::string& previous = "", const std::string& owner = "",
         int64_t created = 0) {
  store.add({.id = id,
             .owner = owner,
             .body = "running",
             .input_items = items("in " + id),
             .previous = previous,
             .created = created});
  store.finish(id, "body " + id, items("out " + id), created);
}

std::string joined(const Result<std::vector<Json>>& chain) {
  if (!chain.ok()) return chain.status().message();
  std::string out;
  for (const Json& item : chain.value()) out += item.as_string() + ";";
  return out;
}

TEST(ResponseStore, ChainsTurnsAndSurvivesTheDeletionOfAParent) {
  ResponseStore store({});
  put(store, "a");
  put(store, "b", "a");
  EXPECT_EQ(joined(store.chain("b", "", 0)), "in a;out a;in b;out b;");
  EXPECT_TRUE(store.remove("a", "", 0).value());
  EXPECT_FALSE(store.remove("a", "", 0).value());
  EXPECT_EQ(store.chain("a", "", 0).status().code(), Code::kNotFound);
  EXPECT_EQ(joined(store.chain("b", "", 0)), "in a;out a;in b;out b;");
  EXPECT_EQ(store.find("b", "", 0).value()->body, "body b");
}

TEST(ResponseStore, HidesFromOtherOwners) {
  ResponseStore store({});
  put(store, "a", "", "alice");
  EXPECT_FALSE(store.find("a", "bob", 0).value());
  EXPECT_FALSE(store.remove("a", "bob", 0).value());
  EXPECT_EQ(store.chain("a", "", 0).status().code(), Code::kNotFound);
  put(store, "b", "a", "bob");  // a foreign parent is none
  EXPECT_EQ(joined(store.chain("b", "bob", 0)), "in b;out b;");
  EXPECT_TRUE(store.chain("a", "alice", 0).ok());
}

TEST(ResponseStore, RunningOnesAreNoParentsAndCanBeCancelled) {
  ResponseStore store({});
  int cancelled = 0;
  store.add({.id = "r", .body = "running", .cancel = [&] { ++cancelled; }});
  EXPECT_EQ(store.chain("r", "", 0).status().code(), Code::kFailedPrecondition);
  store.find("r", "", 0).value()->cancel();
  EXPECT_TRUE(store.remove("r", "", 0).value());
  EXPECT_EQ(cancelled, 2);
  store.finish("r", "late", {}, 0);  // after its removal: nothing
  EXPECT_EQ(store.figures().count, 0u);
  EXPECT_EQ(store.figures().bytes, 0u);
}

TEST(ResponseStore, IsBoundedByBytesAndAge) {
  ResponseStore store({.bytes_max = 100'000, .age_max_s = 10});
  for (int i = 0; i < 1000; ++i) {
    put(store, "r" + std::to_string(i), i > 0 ? "r" + std::to_string(i - 1) : "");
    EXPECT_LE(store.figures().bytes, 100'000u);
  }
  EXPECT_LT(store.figures().count, 1000u);
  EXPECT_FALSE(store.find("r0", "", 0).value());
  put(store, "late", "", "", 100);
  EXPECT_EQ(store.figures().count, 1u);
  EXPECT_TRUE(store.find("late", "", 110).value());
  EXPECT_FALSE(store.find("late", "", 111).value());
}

class SavedResponses : public ::testing::Test {
 protected:
  void SetUp() override { open(); }
  // As after a restart; a small memory, so that little is found there.
  void open(size_t memory = 2000, ResponseArchive::Options options = {}) {
    store_.reset();
    store_ =
        std::make_unique<ResponseStore>(ResponseStore::Options{.bytes_max = memory, .age_max_s = options.age_max_s},
                                        ResponseArchive::open(dir_.path(), options).value());
  }
  int64_t saved() {
    store_->stop();
    return store_->figures().archive.responses;
  }

  testing::TempDir dir_;
  std::unique_ptr<ResponseStore> store_;
};

TEST_F(SavedResponses, OutliveTheProgramWithTheirChains) {
  put(*store_, "a", "", "alice", 100);
  put(*store_, "b", "a", "alice", 101);
  open();
  put(*store_, "c", "b", "alice", 102);
  EXPECT_EQ(joined(store_->chain("c", "alice", 102)), "in a;out a;in b;out b;in c;out c;");
  open();
  EXPECT_EQ(joined(store_->chain("c", "alice", 102)), "in a;out a;in b;out b;in c;out c;");
  const auto b = store_->find("b", "alice", 102).value();
  ASSERT_TRUE(b);
  EXPECT_EQ(b->body, "body b");
  EXPECT_EQ(b->previous, "a");
  EXPECT_EQ(b->input_items.at(0).as_string(), "in b");
  EXPECT_FALSE(b->running);
  EXPECT_FALSE(store_->find("b", "bob", 102).value());
  EXPECT_EQ(store_->chain("b", "bob", 102).status().code(), Code::kNotFound);
  EXPECT_EQ(saved(), 3);
}

TEST_F(SavedResponses, AreFoundOnceTheyLeftTheMemory) {
  std::string want;
  for (int i = 0; i < 200; ++i) {
    const std::string id = "r" + std::to_string(i);
    put(*store_, id, i > 0 ? "r" + std::to_string(i - 1) : "", "", 5);
    want += "in " + id + ";out " + id + ";";
  }
  EXPECT_EQ(joined(store_->chain("r199", "", 5)), want);
  EXPECT_EQ(store_->find("r0", "", 5).value()->body, "body r0");
  EXPECT_EQ(saved(), 200);  // waits for the writer
  EXPECT_LE(store_->figures().bytes, 2000u);
}

TEST_F(SavedResponses, RemovalsLastAndLeaveWhatContinuesThem) {
  put(*store_, "a");
  put(*store_, "b", "a");
  put(*store_, "c");
  EXPECT_TRUE(store_->remove("a", "", 0).value());
  EXPECT_TRUE(store_->remove("c", "", 0).value());
  EXPECT_FALSE(store_->remove("c", "", 0).value());
  open();
  EXPECT_FALSE(store_->find("a", "", 0).value());
  EXPECT_FALSE(store_->find("c", "", 0).value());
  EXPECT_EQ(store_->chain("a", "", 0).status().code(), Code::kNotFound);
  EXPECT_EQ(joined(store_->chain("b", "", 0)), "in a;out a;in b;out b;");
  EXPECT_TRUE(store_->remove("b", "", 0).value());
  EXPECT_EQ(saved(), 0);
}

TEST_F(SavedResponses, GoWithAgeAndSize) {
  open(2000, {.age_max_s = 10});
  put(*store_, "a", "", "", 100);
  put(*store_, "b", "a", "", 109);
  open(2000, {.age_max_s = 10});
  EXPECT_FALSE(store_->find("a", "", 111).value());
  // its conversation is whole as long as it is there
  EXPECT_EQ(joined(store_->chain("b", "", 111)), "in a;out a;in b;out b;");
  put(*store_, "c", "", "", 200);
  EXPECT_EQ(saved(), 1);
  open(2000, {.bytes_max = 6000, .age_max_s = 1000});
  for (int i = 0; i < 50; ++i) put(*store_, "n" + std::to_string(i), i > 0 ? "n" + std::to_string(i - 1) : "", "", 300);
  EXPECT_LT(saved(), 12);
  EXPECT_LE(store_->figures().archive.bytes, 6000);
  open(2000, {.bytes_max = 6000, .age_max_s = 1000});
  EXPECT_TRUE(store_->find("n49", "", 300).value());
  EXPECT_EQ(store_->chain("n49", "", 300).status().code(), Code::kNotFound);  // its beginning went
}

TEST_F(SavedResponses, ManyThreadsWriteReadAndRemove) {
  open(20'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 100; ++i) {
        const std::string id = std::to_string(t) + "_" + std::to_string(i),
                          before = i > 0 ? std::to_string(t) + "_" + std::to_string(i - 1) : "";
        put(*store_, id, before);
        EXPECT_TRUE(store_->chain(id, "", 0).ok());
        if (i % 3 == 2) {
          EXPECT_TRUE(store_->remove(before, "", 0).value());
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  open(20'000);
  for (int t = 0; t < 4; ++t) {
    const std::string last = std::to_string(t) + "_99";
    const auto chain = store_->chain(last, "", 0);
    ASSERT_TRUE(chain.ok()) << chain.status().message();
    EXPECT_EQ(chain.value().size(), 200u);
    EXPECT_FALSE(store_->find(std::to_string(t) + "_1", "", 0).value());
  }
  EXPECT_EQ(store_->figures().unsaved, 0u);
}

}  // namespace
}  // namespace deepinfer::serve
