#!/usr/bin/env bash
# Installs, builds and runs the fast tests.   --all adds what takes longer: sanitizer builds and the clean-machine test.
set -euo pipefail
cd "$(dirname "$0")"
all=
for arg in "$@"; do
  case "$arg" in
    --all) all=1 ;;
    *) echo "usage: ./test.sh [--all]" >&2; exit 2 ;;
  esac
done
tools/install-deps.sh --tests
tools/fetch_test_tokenizer.sh || true  # without it the cases that need DeepSeek's full vocabulary are skipped
tools/build.sh release
ctest --test-dir build/release --output-on-failure -j "$(nproc)"
if [ -n "$all" ]; then
  export DEEPINFER_TEST_ALL=1
  ctest --test-dir build/release --output-on-failure -C all
  for preset in asan tsan; do  # their fast tests: many times slower than without, the long ones would take a day
    tools/build.sh "$preset"
    env -u DEEPINFER_TEST_ALL ctest --test-dir "build/$preset" --output-on-failure
  done
  tests/e2e/clean_machine.sh
fi
