di_bench(tokenizer SOURCES bench_tokenizer.cc DEPS di_text)
