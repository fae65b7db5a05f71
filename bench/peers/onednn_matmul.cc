#include "bench/peers/onednn_matmul.h"

#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

namespace bench {

using dnnl::memory;

struct OneDnnMatmul::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<uint16_t> x;
  std::vector<float> y;
  memory w;
  dnnl::matmul product;
  memory xm, ym;
};

OneDnnMatmul::OneDnnMatmul(int64_t rows, int64_t k, int64_t outputs) : impl_(std::make_unique<Impl>()) {
  Impl& i = *impl_;
  using type = memory::data_type;
  using tag = memory::format_tag;
  const memory::desc x({rows, k}, type::bf16, tag::ab), any({k, outputs}, type::bf16, tag::any),
      y({rows, outputs}, type::f32, tag::ab);
  const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(x, any, y), i.engine);
  i.x.assign(rows * k, 0x3f80);
  i.y.assign(rows * outputs, 0);
  std::vector<uint16_t> plain(outputs * k, 0x3c00);
  memory w({{k, outputs}, type::bf16, tag::ba}, i.engine, plain.data());
  i.w = memory(plan.weights_desc(), i.engine);
  dnnl::reorder(w, i.w).execute(i.stream, w, i.w);
  i.stream.wait();
  i.xm = memory(x, i.engine, i.x.data());
  i.ym = memory(y, i.engine, i.y.data());
  i.product = dnnl::matmul(plan);
}

OneDnnMatmul::~OneDnnMatmul() = default;

void OneDnnMatmul::run() {
  Impl& i = *impl_;
  i.product.execute(i.stream, {{DNNL_ARG_SRC, i.xm}, {DNNL_ARG_WEIGHTS, i.w}, {DNNL_ARG_DST, i.ym}});
  i.stream.wait();
}

}  // namespace bench
