#!/usr/bin/env bash
# Gets what the two-socket machine needs: QEMU, busybox and cpio from the system's packages, and a Debian kernel under
# target/numa-vm. Does nothing when it is there already. Exits with 3, and says why, when this machine can't have it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${NUMA_VM_DIR:-$here/../../target/numa-vm}

cannot() { # what, hint
    echo "no NUMA machine: $1" >&2
    echo "hint: $2" >&2
    exit 3
}

[ "$(uname -sm)" = "Linux x86_64" ] || cannot "it runs on Linux on x86-64" "this test is skipped here"
mkdir -p "$out"
packages=()
command -v qemu-system-x86_64 >/dev/null || packages+=(qemu-system-x86)
command -v cpio >/dev/null || packages+=(cpio)
{ [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1; } || packages+=(busybox-static)
[ ${#packages[@]} -eq 0 ] && [ -e "$out/vmlinuz" ] && exit 0

command -v apt-get >/dev/null || cannot "this system lacks ${packages[*]:-a kernel} and has no apt-get" \
    "install QEMU, cpio and a static busybox, and put a kernel with NUMA support at target/numa-vm/vmlinuz"
sudo=
[ "$(id -u)" -eq 0 ] || sudo="sudo -n"
if [ ${#packages[@]} -gt 0 ]; then
    echo "installing ${packages[*]}"
    $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends \
        "${packages[@]}" >/dev/null || cannot "${packages[*]} could not be installed" "install them by hand"
fi
if [ ! -e "$out/vmlinuz" ]; then
    # The package that the newest cloud kernel's name stands for; unpacked, not installed.
    kernel=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -n1)
    [ -n "$kernel" ] || cannot "apt knows no linux-image-cloud-amd64" "put a kernel with NUMA support at $out/vmlinuz"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # apt downloads as a user who may not write everywhere.
    chmod 755 "$work"
    (cd "$work" && apt-get download -qq "$kernel" && dpkg -x ./*.deb root) ||
        cannot "$kernel could not be downloaded" "put a kernel with NUMA support at $out/vmlinuz"
    cp "$work"/root/boot/vmlinuz-* "$out/vmlinuz.new"
    mv "$out/vmlinuz.new" "$out/vmlinuz"
fi
