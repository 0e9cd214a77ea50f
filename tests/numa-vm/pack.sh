#!/usr/bin/env bash
# pack.sh OUT.cpio.gz PROGRAM INIT [FOLDER...]: an initial file system with busybox, a program and the libraries that it
# loads, the script that runs as process 1, and folders with what it needs (below /given).
set -euo pipefail
out=$1 program=$2 init=$3
shift 3
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,proc,sys,dev,tmp,given}
cp /bin/busybox "$root/bin/busybox"
for name in sh mount; do ln -s busybox "$root/bin/$name"; done
cp "$program" "$root/bin/muster"
# Debugging symbols would be most of what has to be unpacked in there.
if command -v strip >/dev/null; then strip "$root/bin/muster"; fi
for library in $(ldd "$program" | grep -oE '/[^ ]+'); do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
cp "$init" "$root/init"
chmod +x "$root/init"
for folder in "$@"; do cp -r "$folder" "$root/given/"; done
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$out"
