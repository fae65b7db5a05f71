#include "checkpoint/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "checkpoint/json_object.h"

namespace deepinfer::checkpoint {
namespace {

namespace dom = simdjson::dom;
using numeric::DType;

constexpr size_t kMaxDims = 8;

std::string_view shown(std::string_view name) { return name.substr(0, 120); }

Status malformed(const std::string& path, std::string_view name, std::string_view problem) {
  return make_error(Code::kInvalidArgument, "{}: tensor \"{}\" {}", path, shown(name), problem);
}

// Elements x element size, or an error where the product leaves 63 bits.
Status read_shape(dom::element value, const std::string& path, SafetensorsFile::Tensor* t, uint64_t* bytes) {
  dom::array dims;
  if (value.get(dims)) return malformed(path, t->name, "has a \"shape\" that is not a list");
  *bytes = numeric::dtype_bytes(t->view.dtype);
  for (dom::element item : dims) {
    int64_t d = 0;
    if (item.get(d) || d < 0) return malformed(path, t->name, "has a \"shape\" that does not hold sizes");
    if (t->view.shape.size() == kMaxDims)
      return malformed(path, t->name, fmt::format("has more than {} dimensions", kMaxDims));
    if (__builtin_mul_overflow(*bytes, static_cast<uint64_t>(d), bytes) || *bytes > INT64_MAX) {
      return malformed(path, t->name, "has a shape whose size overflows");
    }
    t->view.shape.push_back(d);
  }
  return {};
}

Status read_tensor(dom::element value, const std::string& path, uint64_t data_bytes, SafetensorsFile::Tensor* t) {
  dom::object object;
  if (value.get(object)) return malformed(path, t->name, "is not described by an object");
  dom::element shape, offsets;
  std::string_view dtype;
  bool has_dtype = false, has_shape = false, has_offsets = false;
  for (auto field : object) {
    if (field.key == "dtype") has_dtype = field.value.get(dtype) == simdjson::SUCCESS;
    else if (field.key == "shape") shape = field.value, has_shape = true;
    else if (field.key == "data_offsets") offsets = field.value, has_offsets = true;
    else return malformed(path, t->name, fmt::format("has an unknown key \"{}\" in the header", shown(field.key)));
  }
  if (!has_dtype || !has_shape || !has_offsets)
    return malformed(path, t->name, "lacks its dtype, shape or data_offsets");
  Result<DType> known = numeric::dtype_from_name(dtype);
  if (!known.ok()) return known.status().with_context(fmt::format("{}: tensor \"{}\"", path, shown(t->name)));
  t->view.dtype = known.value();
  uint64_t bytes = 0;
  DI_RETURN_IF_ERROR(read_shape(shape, path, t, &bytes));

  dom::array pair;
  uint64_t begin = 0, end = 0;
  if (offsets.get(pair) || pair.size() != 2 || pair.at(0).get(begin) || pair.at(1).get(end) || begin > end) {
    return malformed(path, t->name, "has data_offsets that are not [begin, end]");
  }
  if (end - begin != bytes) {
    return malformed(path, t->name, fmt::format("has {} bytes, but its shape and type need {}", end - begin, bytes));
  }
  if (end > data_bytes) {
    return make_error(Code::kDataLoss,
                      "{}: the file is cut: tensor \"{}\" ends at byte {} of {} bytes of data; fetch the file again",
                      path, shown(t->name), end, data_bytes);
  }
  t->offset = begin;
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file;
  DI_ASSIGN_OR_RETURN(file.map_, MappedFile::open(path));
  DI_RETURN_IF_ERROR(file.parse());
  DI_RETURN_IF_ERROR(file.check_ranges());
  DI_RETURN_IF_ERROR(file.align());
  return file;
}

Status SafetensorsFile::parse() {
  const std::string& path = map_.path();
  const std::span<const std::byte> file = map_.bytes();
  uint64_t length = 0;
  if (file.size() < sizeof(length))
    return make_error(Code::kDataLoss, "{}: {} bytes are too few for a safetensors file", path, file.size());
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kMaxHeaderBytes) {
    return make_error(Code::kInvalidArgument,
                      "{}: the header claims {} bytes; safetensors headers have at most {}. This is not a safetensors "
                      "file or it is damaged",
                      path, length, kMaxHeaderBytes);
  }
  if (length > file.size() - sizeof(length)) {
    return make_error(Code::kDataLoss,
                      "{}: the file is cut: its header has {} bytes, the file only {}; fetch the file again", path,
                      length, file.size());
  }
  header_bytes_ = sizeof(length) + length;

  dom::parser parser;
  dom::element root;
  const char* text = reinterpret_cast<const char*>(file.data()) + sizeof(length);
  const simdjson::error_code error = parser.parse(text, length).get(root);
  if (error)
    return make_error(Code::kInvalidArgument, "{}: the header is not valid JSON: {}", path,
                      simdjson::error_message(error));
  dom::object header;
  if (root.get(header))
    return make_error(Code::kInvalidArgument, "{}: the header holds {}; it must hold an object", path,
                      json_type_name(root.type()));

  const uint64_t data_bytes = file.size() - header_bytes_;
  for (auto field : header) {
    if (field.key == "__metadata__") continue;
    Tensor t;
    t.name = field.key;
    DI_RETURN_IF_ERROR(read_tensor(field.value, path, data_bytes, &t));
    t.view.data = file.data() + header_bytes_ + t.offset;
    tensors_.push_back(std::move(t));
  }
  return {};
}

Status SafetensorsFile::check_ranges() const {
  const std::string& path = map_.path();
  std::vector<uint32_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (tensors_[order[i]].name == tensors_[order[i - 1]].name)
      return malformed(path, tensors_[order[i]].name, "is described twice");
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(tensors_[a].offset, tensors_[a].view.bytes()) <
           std::pair(tensors_[b].offset, tensors_[b].view.bytes());
  });
  uint64_t at = 0;
  for (uint32_t i : order) {
    const Tensor& t = tensors_[i];
    if (t.offset < at) return malformed(path, t.name, "overlaps the tensor before it");
    if (t.offset > at)
      return malformed(path, t.name, fmt::format("follows a gap of {} bytes that no tensor describes", t.offset - at));
    at = t.offset + t.view.bytes();
  }
  const uint64_t data_bytes = map_.bytes().size() - header_bytes_;
  if (at != data_bytes) {
    return make_error(Code::kInvalidArgument,
                      "{}: {} bytes behind the last tensor belong to nothing; the file is damaged", path,
                      data_bytes - at);
  }
  return {};
}

Status SafetensorsFile::align() {
  std::stable_sort(tensors_.begin(), tensors_.end(),
                   [](const Tensor& a, const Tensor& b) { return a.offset < b.offset; });
  for (Tensor& t : tensors_) {
    const size_t size = numeric::dtype_bytes(t.view.dtype);
    if (reinterpret_cast<uintptr_t>(t.view.data) % size == 0) continue;
    const uint64_t bytes = t.view.bytes();
    std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
    if (copy == nullptr) {
      return make_error(
          Code::kResourceExhausted,
          "{}: tensor \"{}\" lies at an odd offset and needs a copy of {} bytes, more memory than there is",
          map_.path(), shown(t.name), bytes);
    }
    std::memcpy(copy.get(), t.view.data, bytes);
    t.view.data = copy.get();
    copies_.push_back(std::move(copy));
    copied_.push_back(t.name);
  }
  return {};
}

}  // namespace deepinfer::checkpoint
