# Only the preset `cuda` builds it: nvcc compiles, the rest is linked as usual.
if(DEEPINFER_CUDA)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/bench_ops_cuda.o)
  add_custom_command(OUTPUT ${object} DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/bench_ops_cuda.cu DEPFILE ${object}.d VERBATIM
                     COMMAND nvcc -std=c++20 -O2 -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR} -DFMT_USE_CONSTEXPR=1 -gencode=arch=compute_90a,code=sm_90a -w -MD -MF ${object}.d
                             -c ${CMAKE_CURRENT_SOURCE_DIR}/bench_ops_cuda.cu -o ${object})
  add_executable(bench_ops_cuda ${object})
  set_target_properties(bench_ops_cuda PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(bench_ops_cuda PRIVATE di_ops_cuda fmt::fmt)
  # Experts computed by the host: a table, no cases of cases.json.
  add_executable(cuda_host_experts_rates ${CMAKE_CURRENT_SOURCE_DIR}/cuda/host_experts.cc)
  target_include_directories(cuda_host_experts_rates PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(cuda_host_experts_rates PRIVATE di_ops_cuda di_model)
  add_dependencies(bench_ops_cuda cuda_host_experts_rates)
endif()
