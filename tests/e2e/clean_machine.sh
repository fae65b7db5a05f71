#!/usr/bin/env bash
# Proves that a clone alone works on a bare Debian 12: makes a root with debootstrap, clones the committed tree into it and runs
# ./run.sh --prompt and ./test.sh there. Needs root, debootstrap and a Debian mirror (DEEPINFER_MIRROR, default the one apt uses).
#   tests/e2e/clean_machine.sh [ROOT]       ROOT (default a temporary folder) is made, and removed at the end unless given
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || { echo "SKIPPED: the clean-machine test needs root (chroot)"; exit 0; }
command -v debootstrap >/dev/null || apt-get install -y -qq --no-install-recommends debootstrap >/dev/null

mirror=${DEEPINFER_MIRROR:-http://deb.debian.org/debian}
if [ $# -gt 0 ]; then root=$1; else root=$(mktemp -d /var/tmp/deepinfer-clean-XXXXXX); fi
cleanup() {
  umount "$root/dev/pts" "$root/dev" "$root/proc" 2>/dev/null || true
  [ $# -gt 0 ] || rm -rf --one-file-system "$root"
}
trap 'cleanup "$@"' EXIT

[ -e "$root/etc/debian_version" ] || debootstrap --variant=minbase --include=ca-certificates bookworm "$root" "$mirror" >"$root.log" 2>&1 || {
  tail -5 "$root.log"; exit 1; }
rm -f "$root.log"
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
rm -f "$root"/etc/apt/apt.conf.d/docker* "$root"/etc/apt/apt.conf.d/20packagekit "$root"/etc/apt/apt.conf.d/50appstream
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount --make-private "$root/dev"  # else the next mount, and its end, show in this system's /dev, too
mount --bind /dev/pts "$root/dev/pts"  # the chat is tested on a pseudo-terminal
rm -rf "$root/deepinfer"
git clone -q --no-hardlinks . "$root/deepinfer"

inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEEPINFER_CLEAN_MACHINE=1 bash -c "cd /deepinfer && $1"; }
answer=$(inside './run.sh --raw --prompt "Once upon a time" --temperature 0 --max-tokens 40')
[ "${#answer}" -gt 40 ] || { echo "FAILED: run.sh printed: $answer"; exit 1; }
inside './test.sh'
echo "clean machine: run.sh and test.sh work"
