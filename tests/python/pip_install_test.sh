#!/usr/bin/env bash
# Installs the package with pip into a fresh virtual environment and runs its tests there, away from the source tree.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${1:-/usr/bin/python3}
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$(cd "$root/.." && pwd)} CCACHE_NOHASHDIR=1
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
"$python" -m venv --system-site-packages "$home/venv"  # NumPy and setuptools come from the system's packages: no network
"$home/venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation --no-deps "$root"
cd "$home"
"$home/venv/bin/python" -c 'import deepinfer; assert "venv" in deepinfer.__file__, deepinfer.__file__'
"$home/venv/bin/python" -B "$root/tests/python/llm_test.py"
# What `pip install .` brings to people: NumPy 2, while the system's package may be of version 1.
if "$home/venv/bin/pip" install --quiet --disable-pip-version-check --ignore-installed 'numpy>=2'; then
  "$home/venv/bin/python" -B "$root/tests/python/llm_test.py"
else
  echo "SKIPPED: NumPy 2 could not be fetched"
fi
