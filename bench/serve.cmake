di_bench(serve SOURCES bench_serve.cc DEPS di_serve di_engine)
