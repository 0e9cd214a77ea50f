#!/usr/bin/env bash
# Runs the tests of kernels, and the tile arithmetic of tests/amx-trap, on emulated CPUs: a short set, or everything
# with FULL=1. Where there is no emulator it says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/../.."

status=0
bash tests/isa/setup.sh || status=$?
if [ $status -eq 3 ]; then
    echo "skipped: kernels on emulated CPUs (see above)"
    exit 0
fi
[ $status -eq 0 ] || exit $status

# Static, because the emulator loads no libraries; a directory of its own, so that ordinary builds stay as they are.
export RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$PWD/tests/isa/run.sh
# Without threads the tests of the pool have nothing to do, and the yardsticks measure speed.
without=(--skip pool:: --skip peak::)

emulate() { # model, cargo arguments... -- test arguments...
    local model=$1
    shift
    echo "== $model${BX_AMX:+ with AMX}"
    BX_MODEL=$model "${CARGO:-cargo}" test --quiet --release --locked --target x86_64-unknown-linux-gnu \
        --target-dir target/isa "$@" --test-threads=1 "${without[@]}"
}

# The choice of kernels, and a few kernels of each kind: an instruction that a CPU lacks would end the program.
smoke=(the_instruction_set_is dispatch_never_exceeds gelu_keeps small_updates scores_of_a_million a_nan_stays)
dispatch() { # model, expected instruction set
    MUSTER_TEST_EXPECT_ISA=$2 emulate "$1" -p muster-kernels --lib --test suite -- "${smoke[@]}"
}
dispatch corei7_sandy_bridge_2600k scalar
dispatch corei7_haswell_4770 avx2
dispatch corei7_icelake_u avx512
dispatch sapphire_rapids avx512-bf16
BX_AMX=1 dispatch sapphire_rapids amx
