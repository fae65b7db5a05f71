#include "serve/router.h"

#include <gtest/gtest.h>

namespace deepinfer::serve {
namespace {

TEST(Router, FindsExactPathsPatternsAndMethods) {
  Router router;
  for (const auto& [method, path] :
       std::vector<std::pair<std::string_view, std::string>>{{"GET", "/v1/models"},
                                                             {"POST", "/v1/responses"},
                                                             {"GET", "/v1/responses/{id}"},
                                                             {"DELETE", "/v1/responses/{id}"},
                                                             {"POST", "/v1/responses/{id}/cancel"}}) {
    router.add({.method = method, .path = path});
  }
  EXPECT_EQ(router.find("GET", "/v1/models").route->path, "/v1/models");
  EXPECT_EQ(router.find("HEAD", "/v1/models").route->path, "/v1/models");
  const RouteMatch one = router.find("GET", "/v1/responses/resp_1");
  ASSERT_NE(one.route, nullptr);
  EXPECT_EQ(one.argument, "resp_1");
  EXPECT_EQ(router.find("POST", "/v1/responses/a/cancel").argument, "a");
  EXPECT_EQ(router.find("POST", "/v1/responses/a").allowed, "GET, DELETE");
  EXPECT_EQ(router.find("PUT", "/v1/models").allowed, "GET");
  for (const char* path : {"/v1/responses/", "/v1/responses/a/b", "/v1/responses//cancel", "/", "", "/v1/models/"}) {
    const RouteMatch none = router.find("GET", path);
    EXPECT_TRUE(none.route == nullptr && none.allowed.empty()) << path;
  }
}

TEST(PercentDecode, LeavesWhatIsNoEscape) {
  EXPECT_EQ(percent_decode("/a%20b%2Fc+d", false), "/a b/c+d");
  EXPECT_EQ(percent_decode("a+b%3D", true), "a b=");
  EXPECT_EQ(percent_decode("%", false), "%");
  EXPECT_EQ(percent_decode("%zz%4", false), "%zz%4");
}

}  // namespace
}  // namespace deepinfer::serve
