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
kernels=(-p muster-kernels --lib --test suite)

emulate() { # model, cargo arguments... -- test arguments...
    local model=$1
    shift
    echo "== on an emulated $model${BX_AMX:+ with AMX}"
    BX_MODEL=$model "${CARGO:-cargo}" test --release --locked --target x86_64-unknown-linux-gnu \
        --target-dir target/isa "$@" --test-threads=1 "${without[@]}"
}

# The choice of kernels, and kernels of each kind: an instruction that a CPU lacks would end the program.
choice=(the_instruction_set_is dispatch_never gelu_keeps casts_round small_updates a_nan_stays a_non_finite strides_
    does_not_leak the_mask)
dispatch() { # model, expected instruction set
    MUSTER_TEST_EXPECT_ISA=$2 emulate "$1" "${kernels[@]}" -- "${choice[@]}"
}
dispatch corei7_sandy_bridge_2600k scalar
dispatch corei7_haswell_4770 avx2
dispatch corei7_icelake_u avx512
dispatch sapphire_rapids avx512-bf16

# Everything else on the CPU that has the most.
export BX_AMX=1
dispatch sapphire_rapids amx
if [ "${FULL:-0}" = 1 ]; then
    emulate sapphire_rapids "${kernels[@]}" --
    emulate sapphire_rapids -p muster-amx-trap --test silicon --
else
    # Some seconds each; what is left out compares large shapes with slow references.
    emulate sapphire_rapids "${kernels[@]}" -- gemm:: norm:: dropout:: loss:: sums_and activations_at reductions_ \
        three_updates tables_may unused_slots relative_terms_have scattering
    emulate sapphire_rapids -p muster-amx-trap --test silicon -- ordinary denormal_inputs partial_tiles
fi

bash tests/isa/gate.sh
