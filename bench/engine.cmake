di_bench(engine SOURCES bench_engine.cc DEPS di_engine)
