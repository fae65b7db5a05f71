#include "checkpoint/hub/digest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include <openssl/evp.h>

namespace deepinfer::checkpoint {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

struct CloseFile {
  int fd;
  ~CloseFile() { ::close(fd); }
};

}  // namespace

Result<std::string> digest_of_file(const std::string& path, size_t digits, const std::atomic<bool>* stop) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return make_error(Code::kIo, "Cannot read {}: {}.", path, std::strerror(errno));
  const CloseFile close_file{fd};
  struct stat info {};
  if (::fstat(fd, &info) != 0) return make_error(Code::kIo, "Cannot read {}: {}.", path, std::strerror(errno));
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (context == nullptr || EVP_DigestInit_ex(context.get(), digits == 64 ? EVP_sha256() : EVP_sha1(), nullptr) != 1) {
    return Status(Code::kInternal, "OpenSSL does not offer SHA-256 and SHA-1 here.");
  }
  if (digits == 40) {
    std::string head = fmt::format("blob {}", info.st_size);
    head.push_back('\0');
    EVP_DigestUpdate(context.get(), head.data(), head.size());
  }
  std::vector<char> buffer(kBufferBytes);
  while (true) {
    if (stop != nullptr && stop->load()) return Status(Code::kCancelled, "Stopped.");
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return make_error(Code::kIo, "Cannot read {}: {}.", path, std::strerror(errno));
    if (n == 0) break;
    EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(n));
  }
  unsigned char out[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  EVP_DigestFinal_ex(context.get(), out, &length);
  std::string hex;
  for (unsigned i = 0; i < length; ++i) hex += fmt::format("{:02x}", out[i]);
  return hex;
}

}  // namespace deepinfer::checkpoint
