#!/usr/bin/env bash
# Checks licences, sources and banned crates; builds cargo-deny under target/tools when it is missing.
# Its advisory list is a download that not every build machine can make, so it is not a gate here.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/target/tools/bin:$PATH"
if ! cargo deny --version >/dev/null 2>&1; then
    echo "building cargo-deny, once"
    CARGO_TARGET_DIR="$PWD/target/tools/build" cargo install --quiet --locked --root target/tools cargo-deny@0.20.2
    rm -rf target/tools/build
fi
cargo deny --workspace --locked check bans licenses sources
