// Points of kv at which a test or an operator's drill can make something fail.
//
//   Faults faults;
//   faults.hook = [&](FaultPoint p) { return p == FaultPoint::kHostVerify && rng() % 100 == 0; };
//
// An empty hook never fails anything. A failed point behaves as the real failure would: a miss, a refused reservation.
#pragma once

#include <cstdint>
#include <functional>

namespace deepinfer::kv {

enum class FaultPoint : uint8_t {
  kHostReserve,  // no host memory
  kHostVerify,   // bytes in host memory changed: the checksum does not fit
  kIndexInsert,  // a block cannot be added to the prefix index
  kSsdFull,      // no space on the device
  kSsdWrite,     // a write fails
  kSsdTorn,      // a write stops half way, as at a crash: the process goes on without knowing
  kSsdRead,      // a read fails
  kSsdFlip,      // a read gives one wrong bit
  kSsdShort,     // a read gives half
};

struct Faults {
  std::function<bool(FaultPoint)> hook;
  bool fails(FaultPoint p) const { return hook && hook(p); }
};

}  // namespace deepinfer::kv
