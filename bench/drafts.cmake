di_bench(drafts SOURCES bench_drafts.cc draft_recording.cc DEPS di_engine di_model di_recipe)
