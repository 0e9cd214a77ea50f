#!/usr/bin/env bash
# Counts the instructions of one program on an emulated CPU, by class: count.sh PROGRAM [ARGUMENT...]
# or, for what one product executes, count.sh inner M N K [f32|bf16] [add] (kernels/examples/inner.rs).
# With a second set of arguments behind "minus" the counts are subtracted:
#     count.sh inner 64 64 4096 bf16 minus inner 64 64 2048 bf16
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
[ $# -gt 0 ] || { sed -n '2,5s/^# //p' "$0"; exit 1; }
bash "$here/setup.sh"

inner=$root/target/isa/x86_64-unknown-linux-gnu/release/examples/inner
case " $* " in
*" inner "*)
    (cd "$root" && RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static" "${CARGO:-cargo}" build --quiet \
        --release --locked --target x86_64-unknown-linux-gnu --target-dir target/isa -p muster-kernels --example inner)
    ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { # name of the result, program, arguments...
    local result=$work/$1 program=$2
    shift 2
    [ "$program" = inner ] && program=$inner
    BX_AMX=${BX_AMX-1} BX_STATS=$result "$here/run.sh" "$program" "$@"
}
first=() second=() words=first
for word in "$@"; do
    if [ "$word" = minus ]; then words=second; continue; fi
    declare -n list=$words
    list+=("$word")
done
run a "${first[@]}"
[ ${#second[@]} -eq 0 ] || run b "${second[@]}"
"$root/target/isa/venv/bin/python" "$here/classes.py" "$work"/[ab]
