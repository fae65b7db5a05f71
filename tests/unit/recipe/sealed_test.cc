#include "recipe/sealed.h"

#include <set>

#include <gtest/gtest.h>

namespace deepinfer::recipe {
namespace {

Sealer::Key key(uint8_t fill) {
  Sealer::Key k;
  k.fill(fill);
  return k;
}

TEST(SealerTest, OpensWhatItSealed) {
  const Sealer sealer = Sealer::create({key(1)}, "v4.1").value();
  std::set<std::string> blobs;
  for (const std::string& text :
       {std::string(), std::string("é漢 thought"), std::string(1, '\0'), std::string(100'000, 'x')}) {
    const std::string blob = sealer.seal(text);
    EXPECT_EQ(blob.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"),
              std::string::npos);
    EXPECT_EQ(sealer.open(blob).value(), text);
    EXPECT_TRUE(blobs.insert(sealer.seal(text)).second) << "nonces must differ";
    EXPECT_TRUE(blobs.insert(blob).second);
  }
}

TEST(SealerTest, RefusesEveryChangedByteAndCut) {
  const Sealer sealer = Sealer::create({key(1)}, "v4.1").value();
  const std::string blob = sealer.seal("a short thought");
  for (size_t i = 0; i < blob.size(); ++i) {
    std::string changed = blob;
    changed[i] = blob[i] == 'A' ? 'B' : 'A';
    EXPECT_FALSE(sealer.open(changed).ok()) << i;
    EXPECT_FALSE(sealer.open(blob.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(sealer.open(blob + "A").ok());
  EXPECT_FALSE(sealer.open(" " + blob).ok());
  EXPECT_FALSE(sealer.open(blob + "=").ok());
  EXPECT_FALSE(sealer.open(std::string(Sealer::kBlobBytesMax + 1, 'A')).ok());
}

TEST(SealerTest, KeysRotateAndModelsDoNotMix) {
  const Sealer old_key = Sealer::create({key(1)}, "v4.1").value();
  const Sealer rotated = Sealer::create({key(2), key(1)}, "v4.1").value();
  EXPECT_EQ(rotated.open(old_key.seal("x")).value(), "x");
  EXPECT_FALSE(old_key.open(rotated.seal("x")).ok());
  EXPECT_FALSE(Sealer::create({key(1)}, "v4").value().open(old_key.seal("x")).ok());
  EXPECT_FALSE(Sealer::create({}, "v4").ok());
}

}  // namespace
}  // namespace deepinfer::recipe
