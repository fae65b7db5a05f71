// Helper of differential.py: encode_chunks TOKENIZER.JSON reads chunks on stdin and writes their tokens to stdout, both
// as little-endian 32-bit numbers: in: recognise added tokens (0 or 1), byte count, bytes; out: token count, ids,
// begins, ends (in code points).
#include <cstdio>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace deepinfer::text;

bool read_exactly(void* to, size_t bytes) { return std::fread(to, 1, bytes, stdin) == bytes; }
void write_all(const std::vector<uint32_t>& values) { std::fwrite(values.data(), 4, values.size(), stdout); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().to_string().c_str());
    return 2;
  }
  uint32_t header[2];
  while (read_exactly(header, sizeof header)) {
    std::string text(header[1], '\0');
    if (!read_exactly(text.data(), text.size())) return 1;
    const Encoding encoding =
        tokenizer.value().encode_with_ranges(text, header[0] != 0 ? AddedTokens::kRecognise : AddedTokens::kAsText);
    const std::vector<TokenRange> points = to_code_points(replace_broken_utf8(text), encoding.ranges);
    std::vector<uint32_t> out = {static_cast<uint32_t>(points.size())};
    for (const TokenId id : encoding.ids) out.push_back(static_cast<uint32_t>(id));
    for (const TokenRange& range : points) out.push_back(static_cast<uint32_t>(range.begin));
    for (const TokenRange& range : points) out.push_back(static_cast<uint32_t>(range.end));
    write_all(out);
    std::fflush(stdout);  // the other side waits for this answer before its next question
  }
}
