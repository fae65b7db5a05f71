#include "serve/response_store.h"

#include <gtest/gtest.h>

namespace deepinfer::serve {
namespace {

using recipe::Json;

std::vector<Json> items(const std::string& text) { return {Json(text)}; }

void put(ResponseStore& store, const std::string& id, const std::string& previous = "", const std::string& owner = "", int64_t created = 0) {
  store.add({.id = id, .owner = owner, .body = "running", .input_items = items("in " + id), .previous = previous, .created = created});
  store.finish(id, "body " + id, items("out " + id));
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
  EXPECT_EQ(joined(store.chain("b", "")), "in a;out a;in b;out b;");
  EXPECT_TRUE(store.remove("a", ""));
  EXPECT_FALSE(store.remove("a", ""));
  EXPECT_EQ(store.chain("a", "").status().code(), Code::kNotFound);
  EXPECT_EQ(joined(store.chain("b", "")), "in a;out a;in b;out b;");
  EXPECT_EQ(store.find("b", "")->body, "body b");
}

TEST(ResponseStore, HidesFromOtherOwners) {
  ResponseStore store({});
  put(store, "a", "", "alice");
  EXPECT_FALSE(store.find("a", "bob"));
  EXPECT_FALSE(store.remove("a", "bob"));
  EXPECT_EQ(store.chain("a", "").status().code(), Code::kNotFound);
  put(store, "b", "a", "bob");  // a foreign parent is none
  EXPECT_EQ(joined(store.chain("b", "bob")), "in b;out b;");
  EXPECT_TRUE(store.chain("a", "alice").ok());
}

TEST(ResponseStore, RunningOnesAreNoParentsAndCanBeCancelled) {
  ResponseStore store({});
  int cancelled = 0;
  store.add({.id = "r", .body = "running", .cancel = [&] { ++cancelled; }});
  EXPECT_EQ(store.chain("r", "").status().code(), Code::kFailedPrecondition);
  store.find("r", "")->cancel();
  EXPECT_TRUE(store.remove("r", ""));
  EXPECT_EQ(cancelled, 2);
  store.finish("r", "late", {});  // after its removal: nothing
  EXPECT_EQ(store.size(), 0u);
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, IsBoundedByBytesAndAge) {
  ResponseStore store({.bytes_max = 100'000, .age_max_s = 10});
  for (int i = 0; i < 1000; ++i) {
    put(store, "r" + std::to_string(i), i > 0 ? "r" + std::to_string(i - 1) : "");
    EXPECT_LE(store.bytes(), 100'000u);
  }
  EXPECT_LT(store.size(), 1000u);
  EXPECT_FALSE(store.find("r0", ""));
  put(store, "late", "", "", 100);
  EXPECT_EQ(store.size(), 1u);
}

}  // namespace
}  // namespace deepinfer::serve
