#!/usr/bin/env bash
# Fails when a product of 64 x 64 x 2048 executes more instructions than counts.tsv says: gate.sh, or gate.sh write to count
# anew. Counts of one compiler are exact, those of two differ a little, so 3 % more are let through.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
table=$here/counts.tsv

count() { # model, with AMX (1 or 0), type -> lines of "count<TAB>class"
    local amx=
    [ "$2" = 0 ] || amx=1
    BX_MODEL=$1 BX_AMX=$amx bash "$here/count.sh" inner 64 64 4096 "$3" minus inner 64 64 2048 "$3" |
        sed -n 's/^ *\([0-9,]\{1,\}\)  \(.*\)$/\1\t\2/p' | tr -d ,
}
mode=${1:-check} status=0 last= counts=
new=$(mktemp)
trap 'rm -f "$new"' EXIT
head -n 1 "$table" >"$new"
while IFS=$'\t' read -r model amx type class most; do
    if [ "$last" != "$model $amx $type" ]; then
        last="$model $amx $type"
        counts=$(count "$model" "$amx" "$type")
    fi
    now=$(awk -F'\t' -v class="$class" '$2 == class { print $1 }' <<<"$counts")
    printf '%s\t%s\t%s\t%s\t%s\n' "$model" "$amx" "$type" "$class" "${now:-0}" >>"$new"
    [ "$mode" = check ] || continue
    if [ -z "$now" ] || [ "$now" -gt $((most * 103 / 100)) ]; then
        echo "error: $type on $model (AMX $amx): '$class' is ${now:-missing}, at most $most in tests/isa/counts.tsv" >&2
        status=1
    else
        echo "$type on $model (AMX $amx): $class $now of $most"
    fi
done < <(tail -n +2 "$table")
if [ "$mode" = write ]; then
    cp "$new" "$table"
elif [ $status -ne 0 ]; then
    echo "hint: if that is meant, run tests/isa/gate.sh write" >&2
    exit 1
fi
