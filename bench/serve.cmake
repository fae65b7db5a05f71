di_bench(serve SOURCES bench_serve.cc serve/times.cc DEPS di_serve di_engine)
