file(GLOB kv_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/kv/*.cc)
di_bench(kv SOURCES bench_kv.cc ${kv_sources} DEPS di_engine di_kv)
