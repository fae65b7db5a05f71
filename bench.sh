#!/usr/bin/env bash
# Builds and runs benchmarks: ./bench.sh [NAME...] [--quick] [--json]
# NAME is a program bench/bench_NAME; none means all. Each result is one JSON line; without --json a table that marks
# what misses its goal. A case of bench/cases.json that a benchmark does not print counts as a miss.
set -euo pipefail
cd "$(dirname "$0")"
tools/install-deps.sh --tests >&2
exec python3 tools/bench.py "$@"
