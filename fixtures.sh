#!/usr/bin/env bash
# Builds and runs fixture files or folders (formats: encoding, structured, json-schema, model): ./fixtures.sh PATH...
# Prints each failing case with what was expected and got; the last line is "N passed, N failed".
# DEEPINFER_FIXTURE_RESULTS=FILE also appends the results of structured cases, as JSON lines for score.py of those fixtures;
# DEEPINFER_FIXTURE_TOKENIZER=FILE runs them with another tokenizer.json than the bundled model's.
set -euo pipefail
paths=()
for p in "$@"; do case "$p" in -*) paths+=("$p") ;; *) paths+=("$(realpath -m -- "$p")") ;; esac; done
cd "$(dirname "$0")"
tools/install-deps.sh --tests >&2
tools/fetch_test_tokenizer.sh || true  # without it the cases that need DeepSeek's full vocabulary are skipped
log=$(mktemp)
tools/build.sh release deepinfer_fixtures >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
rm -f "$log"
exec build/release/tests/fixtures/deepinfer_fixtures "${paths[@]}"
