add_executable(api_compatibility ${CMAKE_SOURCE_DIR}/tools/api_compatibility.cc)
target_link_libraries(api_compatibility PRIVATE di_recipe)
