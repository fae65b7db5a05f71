di_bench(scheduler SOURCES bench_scheduler.cc DEPS di_sched)
