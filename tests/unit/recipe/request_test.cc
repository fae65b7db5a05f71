#include "recipe/request.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/fixtures/encoding_cases.h"

namespace deepinfer::recipe {
namespace {

using fixtures::text_member;

Json load(const std::string& name) {
  Result<std::string> file = read_file(DEEPINFER_TEST_DATA "/recipe/" + name, 8 << 20);
  if (!file.ok()) return {};
  Result<Json> root = parse_json(file.value());
  return root.ok() ? std::move(root).value() : Json();
}

using Check = fixtures::Outcome (*)(const Json&);

void run_file(const char* name, size_t count, Check check) {
  const Json root = load(name);
  const Json* cases = root.find("cases");
  ASSERT_NE(cases, nullptr);
  for (const Json& c : cases->as_array()) {
    const fixtures::Outcome bad = check(c);
    EXPECT_FALSE(bad) << text_member(c, "name") << " " << bad->what << "\n expected " << bad->expected << "\n got      "
                      << bad->got;
  }
  EXPECT_EQ(cases->as_array().size(), count);
}

TEST(RequestFixtures, Requests) { run_file("requests.json", 68, fixtures::check_request_case); }
TEST(RequestFixtures, OracleChat) { run_file("oracle_chat.json", 97, fixtures::check_request_case); }
TEST(RequestFixtures, OracleResponses) { run_file("oracle_responses.json", 45, fixtures::check_request_case); }
TEST(RequestFixtures, OracleMessages) { run_file("oracle_messages.json", 40, fixtures::check_request_case); }
TEST(RequestFixtures, OracleErrors) { run_file("oracle_errors.json", 86, fixtures::check_request_case); }
TEST(RequestFixtures, OracleLimits) { run_file("oracle_limits.json", 3, fixtures::check_limits_case); }

}  // namespace
}  // namespace deepinfer::recipe
