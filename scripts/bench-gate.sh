#!/usr/bin/env bash
# Fails when products, attention or sums have lost half of their share of what the machine can do, against the shares in
# benches/gate. Shares are ratios within one run, so they hold on a busy machine; no absolute time is looked at.
set -euo pipefail
cd "$(dirname "$0")/.."
muster=${1:-target/release/muster}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
measure() { # name, arguments of muster bench...
    local name=$1
    shift
    "$muster" --quiet bench "$@" --output "$work/$name.json" >/dev/null
}
measure gemm gemm --threads 1 --rounds 5 --only "linear f32 forward 512 384 1536"
measure attention attention --threads 1 --rounds 5 --only "attention f32 8 128"

status=0
for name in gemm attention; do
    echo "gate: $name"
    # A change of 100 percent is a factor of two.
    "$muster" bench compare "benches/gate/$name.json" "$work/$name.json" --ratios --threshold 100 || status=$?
done
exit $status
