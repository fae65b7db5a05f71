di_bench(recipe SOURCES bench_recipe.cc DEPS di_recipe)
