#!/usr/bin/env bash
# Installs the Debian 12 packages that the build uses (Ubuntu 24.04 names where they differ), if any is missing.
# Usage: tools/install-deps.sh [--tests | --python]     --tests adds what only the tests need, --python what `pip install .` needs
set -euo pipefail

packages=(
  # compiler and build tools
  g++ cmake ninja-build ccache lld git python3
  libgtest-dev      # the build tree declares the tests even where only the program is built
  # libraries
  libfmt-dev        # text formatting, everywhere
  libcli11-dev      # command line of the program
  libsimdjson-dev   # reading JSON: checkpoints, hub replies, fixtures
  libutf8proc-dev   # Unicode normalisation: Engram classes of a tokenizer without its class file
  libxxhash-dev     # hash tables over tensor names, keys of the prompt cache
  prometheus-cpp-dev  # counters and histograms of /metrics
  libcurl4-openssl-dev libssl-dev  # deepinfer pull: HTTP and SHA-256; sealed reasoning; TLS of the service
  libedit-dev       # line editing of deepinfer run
  libtomlplusplus-dev  # configuration files
  libsqlite3-dev    # files and batches of the service
  libjpeg-dev libpng-dev libwebp-dev libgif-dev  # images in requests
  libhiredis-dev    # KV blocks in Redis
  libsodium-dev     # KV blocks encrypted at rest
  liburing-dev      # asynchronous disk reads and writes: KV on SSD, offloaded experts
)
python=(  # the Python package; pip install .
  python3-dev pybind11-dev python3-numpy python3-setuptools python3-pip python3-venv
)
tests=(
  redis-server      # the KV store's tests start one on loopback
  python3-venv      # SDKs and peer libraries below build/
  curl              # the first call of README.md
  "${python[@]}"
  libdnnl-dev       # oneDNN, the peer of the CPU kernels in bench/ops_cpu
)

# Browser tests. Ubuntu has Chromium as a snap only, which is not installed from here: the tests then say that they are skipped.
debian=$(. /etc/os-release && if [ "$ID" = debian ]; then echo "${VERSION_ID:-testing}"; fi)
if [ -n "$debian" ]; then tests+=(chromium fonts-dejavu-core); fi

# Boost's headers, 1.81 or later: Asio and Beast of the service, small_vector of the grammar engine. Debian 12 has two
# versions, which exclude each other; Ubuntu 24.04's libboost-dev is new enough.
boost=$(sed -n 's/^#define BOOST_VERSION \([0-9]*\)$/\1/p' /usr/include/boost/version.hpp 2>/dev/null || true)
if [ "${boost:-0}" -lt 108100 ] || [ ! -e /usr/include/boost/beast.hpp ]; then
  if [ "$debian" = 12 ]; then packages+=(libboost1.81-dev); else packages+=(libboost-dev); fi
fi

if [ "${1:-}" = "--python" ]; then packages+=("${python[@]}"); fi
if [ "${1:-}" = "--tests" ]; then packages+=("${tests[@]}"); fi

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "These packages are missing: ${missing[*]}. Install them with your system's package manager (no apt-get here)." >&2
  exit 2
fi
echo "Installing: ${missing[*]}"
sudo=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "Run as root, or install sudo: apt-get install ${missing[*]}" >&2; exit 2; }
  sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
