#!/usr/bin/env bash
# Makes the file system of the image: the binary, the libraries that it loads with their licences, and who it runs as.
# Usage: rootfs.sh BINARY DIRECTORY, on the Debian on which BINARY was built. The directory must not exist.
set -euo pipefail

[ $# -eq 2 ] || { echo "usage: rootfs.sh BINARY DIRECTORY" >&2; exit 2; }
binary=$1 root=$2
[ ! -e "$root" ] || { echo "error: $root exists" >&2; exit 1; }

mkdir -p "$root"/usr/bin "$root"/etc "$root"/tmp "$root"/var/lib/dpkg/status.d
chmod 1777 "$root/tmp"
# Symbols are for whoever debugs; they are most of the file.
strip -o "$root/usr/bin/muster" "$binary"

# Libraries under the names that the loader uses. A missing one is an error here, not in a pod.
libraries=$(ldd "$binary")
if missing=$(grep 'not found' <<<"$libraries"); then
    echo "error: $binary needs what this system lacks:" "$missing" >&2
    exit 1
fi
mapfile -t libraries < <(grep -o '/[^ ]*' <<<"$libraries" | sort -u)
cp --dereference --parents "${libraries[@]}" "$root"

# Where scanners look for the packages of an image without a package manager.
owner() { # of a library; dpkg knows it by the path that its package had before /lib became a link
    local path
    for path in "$1" "/usr$1" "$(readlink -f "$1")"; do
        dpkg -S "$path" 2>/dev/null | cut -d: -f1 && return
    done
    echo "error: no package owns $1" >&2
    return 1
}
packages=$(for library in "${libraries[@]}"; do owner "$library"; done | sort -u)
for package in $packages; do
    dpkg -s "$package" >"$root/var/lib/dpkg/status.d/$package"
    mkdir -p "$root/usr/share/doc/$package"
    cp --dereference "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/"
done
cp --dereference --parents /etc/os-release "$root"

# The user of the chart's podSecurity; any other number works too.
echo 'root:x:0:0:root:/:/sbin/nologin
muster:x:10001:10001:muster:/tmp:/sbin/nologin' >"$root/etc/passwd"
echo 'root:x:0:
muster:x:10001:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
