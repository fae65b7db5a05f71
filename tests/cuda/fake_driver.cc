// A libcuda.so.1 for refusals.sh: a driver of version FAKE_DRIVER_VERSION (1000 x major + 10 x minor) that answers
// cuInit with FAKE_DRIVER_INIT and sees no device.
#include <cstdlib>
#include <cstring>

namespace {

int setting(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}
int no_device() { return 100; }  // what every other call answers

}  // namespace

extern "C" {

int cuInit(unsigned) { return setting("FAKE_DRIVER_INIT"); }
int cuDriverGetVersion(int* version) {
  *version = setting("FAKE_DRIVER_VERSION");
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 0;
  return 0;
}
int cuGetProcAddress_v2(const char* symbol, void** function, int, unsigned long, int* status) {
  const auto is = [symbol](const char* name) { return std::strcmp(symbol, name) == 0; };
  *function = is("cuInit")               ? reinterpret_cast<void*>(&cuInit)
              : is("cuDriverGetVersion") ? reinterpret_cast<void*>(&cuDriverGetVersion)
              : is("cuDeviceGetCount")   ? reinterpret_cast<void*>(&cuDeviceGetCount)
              : is("cuGetProcAddress")   ? reinterpret_cast<void*>(&cuGetProcAddress_v2)
                                         : reinterpret_cast<void*>(&no_device);
  if (status != nullptr) *status = 0;
  return 0;
}

}  // extern "C"
