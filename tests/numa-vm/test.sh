#!/usr/bin/env bash
# test.sh [MUSTER]: two ranks on a machine of two sockets, which most machines are not: QEMU plays it. Each rank's threads
# and pages must be on its own NUMA node, sums must go through shared memory, losses must be those of one rank. Where
# there is no QEMU it says so and succeeds.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
muster=${1:-${CARGO_TARGET_DIR:-$top/target}/release/muster}
export NUMA_VM_DIR=${NUMA_VM_DIR:-$top/target/numa-vm}

status=0
bash "$here/setup.sh" || status=$?
if [ $status -eq 3 ]; then
    echo "skipped: no qemu, the two-socket machine (see above)"
    exit 0
fi
[ $status -eq 0 ] || exit $status
[ -x "$muster" ] || { echo "error: no program at $muster: build it first (cargo build --release -p muster)" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/guest"
cp "$here/lib.sh" "$work/guest/"
# A model of one narrow layer: every instruction of it costs some ten here.
cp -r "$top/examples/headlines/model" "$work/guest/"
narrow='s/"hidden_size": 128/"hidden_size": 64/; s/"num_hidden_layers": 2/"num_hidden_layers": 1/
    s/"intermediate_size": 256/"intermediate_size": 64/; s/"pooler_hidden_size": 128/"pooler_hidden_size": 64/'
sed -i "$narrow" "$work/guest/model/config.json"
bash "$here/pack.sh" "$work/initrd" "$muster" "$here/init" "$work/guest"
begun=$SECONDS
# A machine that hangs is ended; nothing inside takes that long.
timeout "${NUMA_VM_TIMEOUT:-600}" bash "$here/boot.sh" "$NUMA_VM_DIR/vmlinuz" "$work/initrd" </dev/null |
    sed -u 's/\r//' | tee "$work/console" || true
verdict=$(grep -a '^VERDICT' "$work/console" || true)
case "$verdict" in
*failures=0\ *) echo "passed: two ranks on two NUMA nodes, $((SECONDS - begun)) s" ;;
"") echo "FAILED: the machine gave no verdict within $((SECONDS - begun)) s" && exit 1 ;;
*) echo "FAILED: $verdict" && exit 1 ;;
esac
