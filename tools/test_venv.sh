#!/usr/bin/env bash
# Makes a Python environment for tests and benchmarks and prints its interpreter:
#   python=$(tools/test_venv.sh build/test-data/recipe-venv deepseek-recipe==0.2.0)
# Exit code 1, with a note on standard error, if the packages cannot be had (for example without a network).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
shift
stamp="$venv/packages.txt"
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9  # tests that want the same environment run side by side
if [ ! -x "$venv/bin/python" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$*" ]; then
  rm -rf "$venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 20 "$@"; } >"/tmp/test-venv-$$.log" 2>&1; then
    echo "cannot install $* ($(tail -n 1 "/tmp/test-venv-$$.log"))" >&2
    rm -rf "$venv" "/tmp/test-venv-$$.log"
    exit 1
  fi
  rm -f "/tmp/test-venv-$$.log"
  echo "$*" >"$stamp"
fi
echo "$PWD/$venv/bin/python"
