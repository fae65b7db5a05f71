di_bench(llama SOURCES bench_llama.cc DEPS di_model)
