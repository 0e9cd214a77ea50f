#!/usr/bin/env bash
# Makes the emulator under target/isa: a Python environment with the CPU core, and the shim. Does nothing when it is
# there already. Exits with 3, and says why, when this machine can't have it (offline, no Python).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../../target/isa
# The offsets in shim.c belong to this version.
core=bochscpu-python==0.4.0

cannot() { # what, hint
    echo "no ISA emulator: $1" >&2
    echo "hint: $2" >&2
    exit 3
}

[ "$(uname -sm)" = "Linux x86_64" ] || cannot "it runs on Linux on x86-64" "tests of other instruction sets are skipped here"
mkdir -p "$out"
if [ ! -e "$out/venv/$core" ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || bash "$here/../../scripts/setup.sh" python3-venv ||
        cannot "python3 has no venv module" "install python3-venv"
    rm -rf "$out/venv"
    python3 -m venv "$out/venv"
    "$out/venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 "$core" ||
        cannot "$core could not be installed" "pip needs PyPI, or an index that has it (pip config set global.index-url)"
    touch "$out/venv/$core"
fi
shim=$out/shim.so
if [ ! -e "$shim" ] || [ "$here/shim.c" -nt "$shim" ] || [ "$here/amx.c" -nt "$shim" ]; then
    # No contraction: where amx.c rounds is part of what it models.
    "${CC:-cc}" -O2 -Wall -shared -fPIC -ffp-contract=off -o "$shim.new" "$here/shim.c" "$here/amx.c" -ldl -lm ||
        cannot "the shim does not compile" "apt-get install gcc libc6-dev"
    mv "$shim.new" "$shim"
fi
