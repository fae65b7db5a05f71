di_bench(speculation SOURCES bench_speculation.cc draft_recording.cc DEPS di_model di_recipe di_sched)
