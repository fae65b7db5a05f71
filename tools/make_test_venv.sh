#!/usr/bin/env bash
# Makes build/test-data/venv, a Python environment with the peer of the tokenizer tests and benchmark (PyPI, test-only).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/test-data/venv
package=tokenizers==0.23.3
"$venv/bin/python" -c 'import tokenizers, sys; sys.exit(tokenizers.__version__ != "0.23.3")' 2>/dev/null && exit 0
python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check "$package" ||
  { echo "$package could not be installed: tests against it will be skipped" >&2; exit 1; }
