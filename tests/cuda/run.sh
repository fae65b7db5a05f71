#!/usr/bin/env bash
# Runs every GPU test and benchmark that the preset `cuda` built and ends with a verdict. Needs a Hopper GPU and the repository
# (test data, bundled model); build first: tools/build.sh cuda cuda_tests bench_ops_cuda
set -uo pipefail
cd "$(dirname "$0")/../.."
bin=${1:-build/cuda/tests/cuda}
if ! nvidia-smi -L >/dev/null 2>&1; then echo "SKIPPED: no NVIDIA GPU here; the GPU tests ran nothing"; exit 0; fi
failed=0
for test in linear_test "cuda_model_stages_test --gtest_filter=*FlipsAreRare*:Agreement*" cuda_model_invariance_test; do
  echo "== $test"
  # shellcheck disable=SC2086
  "$bin"/$test || failed=$((failed + 1))
done
echo "== bench_ops_cuda"
"$bin"/../../bench/bench_ops_cuda || failed=$((failed + 1))
echo "GPU tests: $failed of 4 programs failed"
exit $((failed > 0))
