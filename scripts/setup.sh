#!/usr/bin/env bash
# Installs what a build needs on Debian or Ubuntu: a C compiler, pkg-config, libhwloc and libudev.
# With python3-venv as argument also that, for the emulator of tests/isa and the checks of the Helm chart.
# Installs nothing that is already there. Rust itself is only checked: it is the user's choice how to get it.
set -euo pipefail

packages=()
need() { # package, test command...
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || packages+=("$package")
}
need gcc cc --version
need pkg-config pkg-config --version
need libhwloc-dev pkg-config --exists hwloc
need libudev-dev pkg-config --exists libudev
[ "${1:-}" != python3-venv ] || need python3-venv python3 -c 'import ensurepip, venv'
# Without pkg-config its tests can't answer: ask for all it would have been asked about.
if [ ${#packages[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        echo "error: please install: ${packages[*]} (this script only knows apt-get)" >&2
        exit 1
    fi
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    echo "installing ${packages[*]}"
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
found=$(cargo --version 2>/dev/null | cut -d' ' -f2 || true)
if [ -z "$found" ] || [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n1)" != "$wanted" ]; then
    echo "error: Muster needs Rust $wanted or newer, found ${found:-none}" >&2
    echo "hint: install it with rustup, then run this again" >&2
    exit 1
fi
