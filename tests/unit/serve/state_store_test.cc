#include "serve/state_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "recipe/json.h"
#include "serve/batch_input.h"
#include "serve/multipart.h"

namespace deepinfer::serve {
namespace {

class StateStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/state_store_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<StateStore> open(BatchLimits limits = {}) {
    auto store = StateStore::open(folder_, limits);
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? std::move(store).value() : nullptr;
  }
  static StoredBatch batch(std::string id) {
    return {.id = std::move(id),
            .owner = "o",
            .endpoint = "/v1/completions",
            .input_file = "f",
            .window = "24h",
            .created = 1,
            .expires = 9};
  }

  std::string folder_;
};

TEST_F(StateStoreTest, FilesOfOtherOwnersDoNotExist) {
  const auto store = open();
  const std::string content("a\0b\n", 4);
  ASSERT_TRUE(store->add_file({.id = "f", .owner = "o", .purpose = "batch", .filename = "n"}, content).ok());
  EXPECT_EQ(store->content("f", "o").value(), content);
  EXPECT_EQ(store->file("f", "o").value().bytes, 4);
  EXPECT_EQ(store->file("f", "p").status().code(), Code::kNotFound);
  EXPECT_EQ(store->content("f", "p").status().code(), Code::kNotFound);
  EXPECT_EQ(store->remove_file("f", "p").code(), Code::kNotFound);
  EXPECT_TRUE(store->files("p", "", "", false, 10).value().empty());
  EXPECT_EQ(store->files("p", "", "f", false, 10).status().code(), Code::kNotFound);
}

TEST_F(StateStoreTest, LimitsHold) {
  const auto store = open({.file_bytes_max = 4, .files_max = 2, .stored_bytes_max = 7, .batches_open_max = 1});
  const auto add = [&](std::string id, std::string owner, std::string_view content) {
    return store
        ->add_file({.id = std::move(id), .owner = std::move(owner), .purpose = "batch", .filename = "n"}, content)
        .code();
  };
  EXPECT_EQ(add("a", "o", "12345"), Code::kResourceExhausted);
  EXPECT_EQ(add("a", "o", "1234"), Code::kOk);
  EXPECT_EQ(add("b", "p", "1234"), Code::kResourceExhausted);
  EXPECT_EQ(add("b", "o", "12"), Code::kOk);
  EXPECT_EQ(add("c", "o", "1"), Code::kResourceExhausted);
  EXPECT_EQ(add("c", "p", "1"), Code::kOk);
  EXPECT_TRUE(store->add_batch(batch("x")).ok());
  EXPECT_EQ(store->add_batch(batch("y")).code(), Code::kResourceExhausted);
}

TEST_F(StateStoreTest, LinesGoOnAfterReopening) {
  {
    const auto store = open();
    ASSERT_TRUE(store->add_batch(batch("b")).ok());
    ASSERT_TRUE(
        store
            ->start_batch(
                "b",
                {{.number = 1, .custom_id = "one", .body = "{}"}, {.number = 3, .custom_id = "three", .body = "{}"}}, 5)
            .ok());
    ASSERT_TRUE(store->finish_line("b", {.number = 1, .state = LineState::kCompleted, .result = "R1"}).ok());
    // A second result of a line counts for nothing.
    ASSERT_TRUE(store->finish_line("b", {.number = 1, .state = LineState::kFailed, .result = "R2"}).ok());
  }
  const auto store = open();
  const std::vector<StoredBatch> left = store->open_batches().value();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].completed, 1);
  EXPECT_EQ(left[0].failed, 0);
  EXPECT_EQ(left[0].result_bytes, 2);
  EXPECT_EQ(store->next_line("b", 0).value()->custom_id, "three");
  ASSERT_TRUE(store->finish_line("b", {.number = 3, .state = LineState::kFailed, .result = "R3"}).ok());
  EXPECT_FALSE(store->next_line("b", 0).value().has_value());
  ASSERT_TRUE(
      store->end_batch(left[0], {.status = "completed", .output_file = "out", .error_file = "err", .now = 7}).ok());
  EXPECT_EQ(store->content("out", "o").value(), "R1\n");
  EXPECT_EQ(store->content("err", "o").value(), "R3\n");
  EXPECT_TRUE(store->open_batches().value().empty());
  EXPECT_EQ(store->batch("b", "o").value().error_file, "err");
}

TEST_F(StateStoreTest, ADamagedFileIsRefused) {
  std::filesystem::create_directory(folder_);
  std::ofstream(folder_ + "/state.sqlite") << std::string(4096, 'x');
  EXPECT_EQ(StateStore::open(folder_, {}).status().code(), Code::kDataLoss);
}

TEST(BatchInput, LimitsHold) {
  IdSource ids(true);
  const std::string line =
      R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{"seed":18446744073709551616}})";
  std::vector<BatchLine> lines;
  EXPECT_EQ(read_batch_input(line + "\r\n\n", "/v1/completions", {.batch_line_bytes_max = line.size()}, ids, lines),
            "");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].state, LineState::kWaiting);
  EXPECT_EQ(lines[0].body, R"({"seed": 18446744073709551616})");
  lines.clear();
  EXPECT_EQ(read_batch_input(line, "/v1/completions", {.batch_line_bytes_max = line.size() - 1}, ids, lines), "");
  EXPECT_EQ(lines[0].state, LineState::kFailed);
  EXPECT_NE(lines[0].result.find("line_too_long"), std::string::npos);
  lines.clear();
  const std::string errors =
      read_batch_input(line + "\n" + line, "/v1/completions", {.batch_lines_max = 1}, ids, lines);
  EXPECT_NE(errors.find("too_many_lines"), std::string::npos);
  EXPECT_TRUE(recipe::parse_json(errors).ok());
}

TEST(Multipart, PartsWithTheirNames) {
  const std::string body =
      "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
      "--x\r\ncontent-type: a/b\r\ncontent-disposition: form-data; filename=\"a;\\\"b\\\".jsonl\"; "
      "name=file\r\n\r\n--\r\n\r\n--y\r\n--x--\r\n";
  const auto parts = parse_multipart("Multipart/Form-Data; charset=utf-8; boundary=\"x\"", body);
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  ASSERT_EQ(parts.value().size(), 2u);
  EXPECT_EQ(parts.value()[0].name, "purpose");
  EXPECT_EQ(parts.value()[0].content, "batch");
  EXPECT_EQ(parts.value()[1].name, "file");
  EXPECT_EQ(parts.value()[1].filename, "a;\"b\".jsonl");
  EXPECT_EQ(parts.value()[1].content, "--\r\n\r\n--y");
}

TEST(Multipart, EveryCutOfAFormIsRefused) {
  const std::string body = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x--";
  ASSERT_TRUE(parse_multipart("multipart/form-data; boundary=x", body).ok());
  for (size_t size = 0; size < body.size(); ++size) {
    EXPECT_FALSE(parse_multipart("multipart/form-data; boundary=x", body.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(parse_multipart("multipart/form-data", body).ok());
  EXPECT_FALSE(parse_multipart("multipart/form-data; boundary", body).ok());
  EXPECT_FALSE(parse_multipart("application/json", body).ok());
}

}  // namespace
}  // namespace deepinfer::serve
