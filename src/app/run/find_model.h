// Which folder a model's name on the command line means.
//
//   DI_ASSIGN_OR_RETURN(std::string dir, find_model(flag));
//
// In this order: the folder of that name; a model of that name in the hub cache. Without a name:
// DEEPINFER_HF_MODEL_DIR, then the bundled model beside the program (models/tiny in a source tree,
// share/deepinfer/models/tiny when installed). Nothing is fetched: kNotFound names the pull command.
#pragma once

#include <string>

#include "base/status.h"

namespace deepinfer::app {

Result<std::string> find_model(const std::string& name);

// Whether a folder that find_model() gave is the bundled model's.
bool is_bundled_model(const std::string& dir);

// The tokenizer.json that the same name means; the name may also be that file's path.
Result<std::string> find_tokenizer(const std::string& name);

}  // namespace deepinfer::app
