#!/usr/bin/env bash
# What the program says where it has a CUDA backend but the driver cannot serve it, and that the CPU answers all the same:
#   tests/cuda/refusals.sh [BUILD_FOLDER]
# Needs no GPU. Build first: tools/build.sh cuda deepinfer deepinfer_cuda fake_driver
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/cuda}
program=$build/src/app/deepinfer
[ -x "$program" ] && [ -e "$build/src/app/libdeepinfer_cuda.so" ] || { echo "build first: tools/build.sh cuda deepinfer deepinfer_cuda fake_driver"; exit 1; }
export LD_LIBRARY_PATH=$PWD/$build/tests/cuda/fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
ask=(run --raw --prompt "Once upon a time" --max-tokens 4 --temperature 0 --quiet)
failed=0
# check WHAT SENTENCE NOTE, under the driver that the environment describes
check() {
  local said answer
  said=$(timeout 60 "$program" "${ask[@]}" --device cuda 2>&1)
  if [ $? != 2 ] || [[ $said != *"$2"* || $said != *"--device cpu"* ]]; then echo "FAILED: $1: \"$said\" is not \"$2\""; failed=1; fi
  answer=$(timeout 60 "$program" "${ask[@]}" --device auto 2>/tmp/refusals.$$) && [ -n "$answer" ] || { echo "FAILED: $1: no answer from the CPU: $(cat /tmp/refusals.$$)"; failed=1; }
  if [ -n "$3" ] && ! grep -qF "$3" /tmp/refusals.$$; then echo "FAILED: $1: auto does not say \"$3\""; failed=1; fi
  if [ -z "$3" ] && grep -q "GPU\|driver" /tmp/refusals.$$; then echo "FAILED: $1: auto says $(cat /tmp/refusals.$$)"; failed=1; fi
  rm -f /tmp/refusals.$$
}
FAKE_DRIVER_VERSION=0 check "no driver" "no NVIDIA driver" ""
FAKE_DRIVER_VERSION=12040 check "an old driver" "too old: it runs programs of CUDA 12.4, and this one needs 13.0" "Computing on the CPU: The NVIDIA driver is too old"
FAKE_DRIVER_VERSION=13000 FAKE_DRIVER_INIT=100 check "no GPU" "no NVIDIA GPU that CUDA can see" ""
FAKE_DRIVER_VERSION=13000 FAKE_DRIVER_INIT=999 check "a broken driver" "driver does not answer (unknown error)" "Computing on the CPU: The NVIDIA driver does not answer"
[ $failed = 0 ] && echo "refusals: all as expected"
exit $failed
