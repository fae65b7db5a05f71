di_bench(model SOURCES bench_model.cc DEPS di_model)
