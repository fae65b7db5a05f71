#!/usr/bin/env bash
# Installs what is missing, builds, and starts DeepInfer on the bundled model.
#   ./run.sh                                     the service with its page, at http://127.0.0.1:8000
#   ./run.sh serve --port 8001                   the same with options of `deepinfer serve`
#   ./run.sh --prompt "Tell me a story."         one answer in the terminal; other options of `deepinfer run` likewise
#   ./run.sh run                                 a chat in the terminal
set -euo pipefail
cd "$(dirname "$0")"
tools/install-deps.sh >&2
program=build/release/src/app/deepinfer
say() { echo "$*" >&2; }
if [ ! -x "$program" ]; then say "Building DeepInfer (the first build takes a few minutes; later ones are quick) ..."; fi
log=$(mktemp)
if ! tools/build.sh release deepinfer >"$log" 2>&1; then
  cat "$log" >&2
  say "The build failed; the reason stands above."
  exit 1
fi
rm -f "$log"
case "${1:-serve}" in
  serve | run)
    command=${1:-serve}
    shift || true
    exec "$program" "$command" "$@"
    ;;
  *) exec "$program" run "$@" ;;
esac
