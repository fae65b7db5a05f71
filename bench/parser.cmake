di_bench(parser SOURCES bench_parser.cc DEPS di_recipe)
