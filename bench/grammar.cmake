di_bench(grammar SOURCES bench_grammar.cc DEPS di_grammar di_text)
