#!/usr/bin/env bash
# Checks licences, sources and banned crates; installs cargo-deny beside the build when it is missing.
# Its advisory list is a download that not every build machine can make, so it is not a gate here.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo deny --version >/dev/null 2>&1; then
    cargo install --quiet --locked --root target/tools cargo-deny
    PATH="$PWD/target/tools/bin:$PATH"
fi
cargo deny --workspace --offline check bans licenses sources
