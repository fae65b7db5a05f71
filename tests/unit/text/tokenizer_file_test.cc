// Damaged, foreign and hostile tokenizer.json files: each is refused with a sentence that names the place.
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "base/file.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace deepinfer::text {
namespace {

// A small valid file, member by member, so that a test can replace one.
struct File {
  std::string model_type = R"("BPE")";
  std::string model_options;
  std::string vocab_end = R"(,"ab":256,"abc":257)";
  std::string merges = R"(["a b","ab c"])";
  std::string added = R"([{"id":300,"content":"<x>","special":true}])";
  std::string normalizer = "null";
  std::string pre_tokenizer;
  std::string post_processor = "null";

  std::string json() const {
    std::string vocab;
    for (int byte = 0; byte < 256; ++byte) {
      const std::string spelled = spell_bytes(std::string(1, static_cast<char>(byte)));
      vocab += (byte == 0 ? "\"" : ",\"") + (spelled == "\"" || spelled == "\\" ? "\\" + spelled : spelled) +
               "\":" + std::to_string(byte);
    }
    return R"({"version":"1.0","added_tokens":)" + added + R"(,"normalizer":)" + normalizer + R"(,"pre_tokenizer":)" +
           (pre_tokenizer.empty() ? deepseek() : pre_tokenizer) + R"(,"post_processor":)" + post_processor +
           R"(,"model":{"type":)" + model_type + "," + model_options + R"("vocab":{)" + vocab + vocab_end +
           R"(},"merges":)" + merges + "}}";
  }

  // The pre-tokenizer of the bundled file.
  static std::string deepseek() {
    static const std::string text = [] {
      const std::string file = read_file("models/tiny/tokenizer.json", 1 << 20).value();
      const size_t begin = file.find("\"pre_tokenizer\":") + 16, end = file.find("\"post_processor\"");
      return file.substr(begin, file.rfind(',', end) - begin);
    }();
    return text;
  }
};

void expect_refused(const File& file, Code code, const std::string& words) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse(file.json());
  ASSERT_FALSE(tokenizer.ok()) << words;
  EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status().to_string();
  EXPECT_NE(tokenizer.status().message().find(words), std::string::npos)
      << tokenizer.status().message() << "\nshould say: " << words;
}

TEST(TokenizerFile, SmallFileWorks) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse(File{}.json());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ(tokenizer.value().encode("abcab"), (std::vector<TokenId>{257, 256}));
  EXPECT_EQ(tokenizer.value().encode("<x>").size(), 3u);
  EXPECT_EQ(tokenizer.value().encode("<x>", AddedTokens::kRecognise), std::vector<TokenId>{300});
  EXPECT_EQ(tokenizer.value().vocab_size(), 301);
  EXPECT_FALSE(tokenizer.value().exists(299));
  EXPECT_EQ(tokenizer.value().token_bytes(299), "");
  EXPECT_EQ(tokenizer.value().token_bytes(-1), "");
  EXPECT_EQ(tokenizer.value().token_string(32), "Ġ");
}

TEST(TokenizerFile, MergesAsPairs) {
  File file;
  file.merges = R"([["a","b"],["ab","c"]])";
  EXPECT_EQ(Tokenizer::parse(file.json()).value().encode("abcab"), (std::vector<TokenId>{257, 256}));
}

TEST(TokenizerFile, TokensThatSeveralMergesMake) {
  File file;  // "abc" out of ab+c or a+bc: such files are merged with the heap
  file.vocab_end = R"(,"ab":256,"bc":257,"abc":258)";
  file.merges = R"(["b c","a b","ab c","a bc"])";
  EXPECT_EQ(Tokenizer::parse(file.json()).value().encode("abcab"), (std::vector<TokenId>{258, 256}));
}

TEST(TokenizerFile, AddedTokensAreLeftmostLongestInTwoPasses) {
  File file;
  file.added =
      R"([{"id":300,"content":"<x>"},{"id":301,"content":"<x>y"},{"id":302,"content":"x>y<","normalized":true}])";
  const Tokenizer tokenizer = Tokenizer::parse(file.json()).value();
  EXPECT_EQ(tokenizer.encode("<x>y<x>z", AddedTokens::kRecognise), (std::vector<TokenId>{301, 300, 'z'}));
  EXPECT_EQ(tokenizer.encode("x>y<x>", AddedTokens::kRecognise),
            (std::vector<TokenId>{'x', '>', 'y', 300}));  // first pass wins
  EXPECT_EQ(tokenizer.encode("x>y<", AddedTokens::kRecognise), std::vector<TokenId>{302});
}

TEST(TokenizerFile, OtherKindsAreRefusedByName) {
  File file;
  file.model_type = R"("WordPiece")";
  expect_refused(file, Code::kUnsupported, "WordPiece");
  file = {};
  file.normalizer = R"({"type":"NFC"})";
  expect_refused(file, Code::kUnsupported, "NFC");
  file = {};
  file.pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":false})";
  expect_refused(file, Code::kUnsupported, "ByteLevel");
  file = {};
  file.pre_tokenizer = File::deepseek();
  file.pre_tokenizer.replace(file.pre_tokenizer.find("{1,3}"), 5, "{1,2}");
  expect_refused(file, Code::kUnsupported, "{1,2}");
  file = {};
  file.post_processor = R"({"type":"TemplateProcessing"})";
  expect_refused(file, Code::kUnsupported, "TemplateProcessing");
  for (const char* option :
       {R"("unk_token":"<unk>",)", R"("byte_fallback":true,)", R"("ignore_merges":true,)", R"("dropout":0.1,)"}) {
    file = {};
    file.model_options = option;
    expect_refused(file, Code::kUnsupported, "model.");
  }
  file = {};
  file.added = R"([{"id":300,"content":"<x>","lstrip":true}])";
  expect_refused(file, Code::kUnsupported, "lstrip");
}

TEST(TokenizerFile, WrongTypesAndMissingMembers) {
  File file;
  file.merges = "7";
  expect_refused(file, Code::kInvalidArgument, "model.merges must be a list, not a number");
  file.merges = R"(["ab"])";
  expect_refused(file, Code::kInvalidArgument, "model.merges[0]");
  file.merges = R"([["a"]])";
  expect_refused(file, Code::kInvalidArgument, "model.merges[0]");
  file.merges = R"(["a b",5])";
  expect_refused(file, Code::kInvalidArgument, "model.merges[1]");
  file = {};
  file.vocab_end = R"(,"ab":"x")";
  expect_refused(file, Code::kInvalidArgument, "model.vocab[\"ab\"]");
  file.vocab_end = R"(,"ab":1.5)";
  expect_refused(file, Code::kInvalidArgument, "model.vocab[\"ab\"]");
  file = {};
  file.added = R"({"id":1})";
  expect_refused(file, Code::kInvalidArgument, "added_tokens must be a list");
  file.added = R"([{"content":"<x>"}])";
  expect_refused(file, Code::kInvalidArgument, "added_tokens[0].id is missing");
  file.added = R"([{"id":300,"content":""}])";
  expect_refused(file, Code::kInvalidArgument, "0 bytes long");
  for (const char* json :
       {"", "[]", "{}", "null", "{\"model\":3}", "{\"model\":{\"type\":\"BPE\"}}", "\xff\xfe", "{\"model\":"}) {
    EXPECT_FALSE(Tokenizer::parse(json).ok()) << json;
  }
}

TEST(TokenizerFile, Contradictions) {
  File file;
  file.vocab_end = R"(,"ab":97)";
  expect_refused(file, Code::kInvalidArgument, "the same id 97");
  file.vocab_end = R"(,"ab":256,"ab":257)";
  expect_refused(file, Code::kInvalidArgument, "the same bytes");
  file = {};
  file.merges = R"(["a b","ab d"])";
  expect_refused(file, Code::kInvalidArgument, "model.merges[1]");
  file.merges = R"(["a b","ab c","a b"])";
  expect_refused(file, Code::kInvalidArgument, "model.merges[2] is the same as model.merges[0]");
  file = {};
  file.added = R"([{"id":300,"content":"<x>"},{"id":300,"content":"<y>"}])";
  expect_refused(file, Code::kInvalidArgument, "300");
  file.added = R"([{"id":300,"content":"<x>"},{"id":301,"content":"<x>"}])";
  expect_refused(file, Code::kInvalidArgument, "the same content");
  file.added = R"([{"id":97,"content":"<x>"}])";
  expect_refused(file, Code::kInvalidArgument, "97");
}

TEST(TokenizerFile, NoAllocationWithoutBound) {
  File file;
  file.vocab_end = R"(,"ab":2147483647)";
  expect_refused(file, Code::kInvalidArgument, "ids go from 0");
  file.vocab_end = R"(,"ab":-1)";
  expect_refused(file, Code::kInvalidArgument, "ids go from 0");
  file.vocab_end = ",\"" + std::string(5000, 'x') + "\":256";
  expect_refused(file, Code::kInvalidArgument, "5000 bytes long");
  file = {};
  file.added = R"([{"id":99999999,"content":"<x>"}])";
  expect_refused(file, Code::kInvalidArgument, "ids go from 0");
  EXPECT_FALSE(Tokenizer::parse(std::string(100000, '[')).ok());
}

TEST(TokenizerFile, DamagedBundledFileNeverCrashes) {
  const std::string whole = read_file("models/tiny/tokenizer.json", 1 << 20).value();
  std::mt19937_64 random(3);
  int refused = 0;
  for (int round = 0; round < 150; ++round) {
    std::string json = whole;
    if (round % 3 == 0) {
      json.resize(random() % json.size());
    } else {
      for (int i = 0; i < 1 + round % 5; ++i) json[random() % json.size()] = static_cast<char>(random());
    }
    const Result<Tokenizer> tokenizer = Tokenizer::parse(json);
    if (tokenizer.ok()) {
      EXPECT_EQ(tokenizer.value().decode(tokenizer.value().encode("some text 12")), "some text 12");
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 75);
}

TEST(TokenizerFile, MissingFile) {
  const auto tokenizer = Tokenizer::load("models/none/tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.status().message().find("models/none/tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::text
