#!/usr/bin/env bash
# Puts Prometheus' promtool into build/tools-cache/ for the test of /metrics, from Debian's or Ubuntu's package but without installing
# that: the package starts a server. Prints the program's path.
set -euo pipefail
cd "$(dirname "$0")/.."
if command -v promtool; then exit 0; fi
program=build/tools-cache/usr/bin/promtool
if [ ! -x "$program" ]; then
  mkdir -p build/tools-cache
  (cd build/tools-cache && apt-get download -qq prometheus >/dev/null && dpkg -x prometheus_*.deb . && rm -f prometheus_*.deb)
fi
echo "$program"
