#!/usr/bin/env bash
# Runs one static x86-64 program on an emulated CPU: run.sh PROGRAM [ARGUMENT...]; bxrun.py tells the variables.
# It can be a cargo runner: CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=tests/isa/run.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bash "$here/setup.sh"
out=$here/../../target/isa
export MUSTER_TEST_ONE_THREAD=1 PYTHONDONTWRITEBYTECODE=1
exec env LD_PRELOAD="$out/shim.so" "$out/venv/bin/python" "$here/bxrun.py" "$@"
