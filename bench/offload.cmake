di_bench(offload SOURCES bench_offload.cc DEPS di_engine)
