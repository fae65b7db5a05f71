// The two random checkpoints of spec/model.md 19.4, for any test. Link di_test_checkpoints.
//
//   Result<Checkpoint> c = Checkpoint::open(testing::tiny_random_dir());
//
// The first call of any test program writes the folder into the build tree (0.1 s and 0.3 s), compares every file with
// tests/data/model/random.sha256 and renames it into place; later calls and programs find it there. Ends the program
// with a message if the bytes are not the right ones.
#pragma once

#include <string>

namespace deepinfer::testing {

const std::string& tiny_random_dir();       // 15 MB
const std::string& tiny_wide_random_dir();  // 120 MB

}  // namespace deepinfer::testing
