#!/usr/bin/env bash
# Installs what is missing, builds, and starts DeepInfer on the bundled model. Arguments go to `deepinfer run`.
#   ./run.sh                                     talk to the model in the terminal
#   ./run.sh --prompt "Tell me a story."         one answer
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
if [ -t 0 ] && [ $# -eq 0 ]; then say "Starting a chat with the bundled model. Type /help for commands; Ctrl-D ends the program."; fi
exec "$program" run "$@"
