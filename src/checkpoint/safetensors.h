// One safetensors file, mapped read-only.
//
//   DI_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
//   for (const SafetensorsFile::Tensor& t : file.tensors()) use(t.name, t.view.dtype, t.view.shape, t.view.data);
//
// Layout: 8 bytes little-endian header length, a JSON header, then the data that the header's ranges describe.
// Refused with a sentence: a header above kMaxHeaderBytes or longer than the file (kDataLoss: the file was cut), JSON
// of another form, a name given twice, an unknown element type, a length that is not shape x element size, ranges that
// overlap, leave a gap, reach beyond the file (cut) or leave bytes behind the last one. A range whose address does not
// suit its element type is copied to aligned memory and counted in copied(). Data stays valid as long as the object
// (moves included). Reading the mapping of a file that somebody shortens raises SIGBUS: checkpoints are taken as
// unchanging.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "numeric/dtype.h"

namespace deepinfer::checkpoint {

class SafetensorsFile {
 public:
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

  struct Tensor {
    std::string name;  // as written in the header
    numeric::TensorView view;
    uint64_t offset = 0;  // within the data section
  };

  static Result<SafetensorsFile> open(const std::string& path);

  const std::vector<Tensor>& tensors() const { return tensors_; }  // in the order of their data
  const std::string& path() const { return map_.path(); }
  std::span<const std::byte> bytes() const { return map_.bytes(); }  // the whole file
  uint64_t header_bytes() const { return header_bytes_; }            // including the 8 bytes of its length
  // Names of tensors at odd addresses, which were copied.
  const std::vector<std::string>& copied() const { return copied_; }

 private:
  Status parse();
  Status check_ranges() const;
  Status align();

  MappedFile map_;
  uint64_t header_bytes_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<std::string> copied_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace deepinfer::checkpoint
