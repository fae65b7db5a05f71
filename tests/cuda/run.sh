#!/usr/bin/env bash
# Runs every GPU test and benchmark that the preset `cuda` built and ends with a verdict:
#   tests/cuda/run.sh [--report FILE] [--memcheck] [BUILD_FOLDER]
# --report: also writes everything to FILE. --memcheck: compute-sanitizer over the kernels' own tests as well (minutes).
# Needs a Hopper GPU and the repository (test data, bundled model); build first: tools/build.sh cuda cuda_tests bench_ops_cuda
set -uo pipefail
cd "$(dirname "$0")/../.."
build=build/cuda report= memcheck=
while [ $# -gt 0 ]; do
  case $1 in
    --report) report=${2:?--report needs a file}; shift 2 ;;
    --memcheck) memcheck=1; shift ;;
    -*) echo "unknown option $1; usage: tests/cuda/run.sh [--report FILE] [--memcheck] [BUILD_FOLDER]" >&2; exit 2 ;;
    *) build=$1; shift ;;
  esac
done
if ! nvidia-smi -L >/dev/null 2>&1; then echo "SKIPPED: no NVIDIA GPU here; the GPU tests ran nothing"; exit 0; fi
if [ -n "$report" ]; then exec > >(tee "$report") 2>&1; fi

failed=0 ran=0
run() {
  echo "== $*"
  ran=$((ran + 1))
  "$@" || { failed=$((failed + 1)); echo "FAILED: $1"; }
}
date -u +"%F %T UTC"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
git log -1 --format="commit %h" 2>/dev/null
tests=$build/tests/cuda
if [ -x "$build/src/app/deepinfer" ]; then run tests/cuda/refusals.sh "$build"; fi
run "$tests/linear_test"
run "$tests/experts_test"
run "$tests/attend_test"
run "$tests/select_test"
run "$tests/cuda_model_stages_test" '--gtest_filter=*FlipsAreRare*:*AgreementOf*'
run "$tests/cuda_model_invariance_test"
run "$tests/cuda_width_test"
run "$tests/cuda_offload_test"
run env DEEPINFER_TEST_HOST_EXPERTS=5 "$tests/cuda_model_stages_test" '--gtest_filter=*FlipsAreRare*:*AgreementOf*'
run env DEEPINFER_TEST_HOST_EXPERTS=5 "$tests/cuda_model_invariance_test"
run "$tests/cuda_lost_test"
if [ -x "$build/src/app/deepinfer" ]; then run python3 tests/cuda/kv_tiers.py "$build"; fi
if [ -n "$memcheck" ]; then
  if command -v compute-sanitizer >/dev/null; then
    run compute-sanitizer --tool memcheck --error-exitcode 9 "$tests/linear_test"
    run compute-sanitizer --tool memcheck --error-exitcode 9 "$tests/experts_test" --short
    run compute-sanitizer --tool memcheck --error-exitcode 9 "$tests/attend_test"
    run compute-sanitizer --tool memcheck --error-exitcode 9 "$tests/select_test"
    run compute-sanitizer --tool memcheck --error-exitcode 9 "$tests/cuda_model_invariance_test" '--gtest_filter=*Batch*'
  else
    echo "SKIPPED: there is no compute-sanitizer here"
  fi
fi
run "$build/bench/bench_ops_cuda"
rates=$(mktemp -d)
run "$build/bench/cuda_host_experts_rates" "$rates"
rm -rf "$rates"
echo "GPU checks: $failed of $ran programs failed"
exit $((failed > 0))
