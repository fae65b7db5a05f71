// What the AVX-512 files offer to the table (kernels.cc). Contracts as in kernels.h.
#pragma once

#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast::avx512 {

void multiply(const LinearCall& call, std::byte* scratch);
void fill_lanes(const Matrix& w, std::byte* out);
void multiply_lanes(const LinearCall& call, std::byte* scratch);  // up to kStreamRows rows; row0 % kLaneOutputs is 0
void pack(const float* x, int64_t k, Order order, bool quantise, uint16_t* out, int64_t step);
void outer(const OuterCall& call);
void swiglu(const float* gate, const float* up, int64_t n, float limit, float weight, float* out);
void window_words(const uint8_t* record, int64_t d, uint16_t* out);
void entry_words(const uint8_t* record, int64_t d, uint16_t* out);
void softmax(const SoftmaxCall& call);
void pair_rows(const uint16_t* v, int64_t ldv, int64_t keys, int64_t channels, uint32_t* out);
void divide(float* x, int64_t n, float by);
void few_heads(const FewHeadsCall& call, std::byte* memory);
void key_panel(const KeyPanel& call);
void score(const ScoreCall& call);
void reach(const ReachCall& call);
int64_t list_above(const float* x, int64_t n, float least, int32_t* out);
void fq4i(float* query, int64_t groups);
void query_codes(const float* query, int64_t groups, int8_t* codes, float* factors, int32_t* twelve);
void best(const float* scores, int64_t n, int64_t keep, int32_t* out);
void rotate(float* x, int64_t n, int64_t d, const float* cos, const float* sin, int64_t half, bool inverse);
void engram_sums(const float* x, const float* k, const double* qk, int64_t n, double* out);
void add(float* x, const float* v, int64_t n);
void add_gated(float* x, const float* v, float gate, int64_t n);
void mix_products(const MixFn& fn, const float* x, int64_t n, double* out);
void mix_finish(const MixCall* calls, int64_t n);
void collapse_norm(const float* x, const float* pre, int64_t streams, int64_t n, const float* w, float eps, float* y,
                   float* out);
void norm(const float* x, const float* w, int64_t n, float eps, float* out);
void expand(float* x, const float* y, const float* post, const float* comb, int64_t streams, int64_t n);
void mean(const float* x, int64_t streams, int64_t n, float* out);
void combine(const float* shared, const float* routed, int64_t k, int64_t n, float* out);

}  // namespace deepinfer::ops::cpu::fast::avx512
