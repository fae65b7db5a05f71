#!/usr/bin/env bash
# Builds preset $1 (default release), optionally only the targets that follow. Sets ccache up so that checkouts share it.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$(cd .. && pwd)} CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-5G}
[ -f "build/$preset/build.ninja" ] || cmake --preset "$preset" >"/tmp/deepinfer-configure-$$.log" 2>&1 || { cat "/tmp/deepinfer-configure-$$.log"; exit 1; }
rm -f "/tmp/deepinfer-configure-$$.log"
# A target may be new because its packages have been installed since the tree was configured.
if [ $# -gt 0 ] && ! ninja -C "build/$preset" -t query "$@" >/dev/null 2>&1; then cmake --preset "$preset" >/dev/null; fi
exec cmake --build "build/$preset" ${*:+--target "$@"}
