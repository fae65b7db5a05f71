// What the AMX file offers to the table (kernels.cc). Contracts as in kernels.h.
#pragma once

#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast {

// Asks the processor, and the system for the use of tiles. x86-64 only.
bool have_amx();
// What multiply() takes of scratch memory for rows of k columns, also with emulated tiles.
int64_t amx_scratch_bytes(int64_t k);

namespace amx {

void multiply(const LinearCall& call, std::byte* scratch);
// What tiles can compute at most: `times` x 4 products of whole tiles that are never loaded. Returns their operations,
// a multiply-add counts twice.
double run_tiles(int64_t times);

}  // namespace amx
}  // namespace deepinfer::ops::cpu::fast
