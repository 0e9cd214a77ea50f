#!/usr/bin/env bash
# Fails when a crate depends on another one that ARCHITECTURE.md doesn't allow.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
allow() { # crate, allowed workspace crates...
    local crate=$1 dependency
    shift
    for dependency in $(cargo tree --locked -q -p "$crate" -e normal --depth 1 --prefix none --format '{p}' |
        cut -d' ' -f1 | grep -E '^muster' | grep -vx "$crate"); do
        case " $* " in
            *" $dependency "*) ;;
            *) echo "error: $crate must not depend on $dependency" >&2; status=1 ;;
        esac
    done
}
allow muster-proto
allow muster-kernels
allow muster-allreduce muster-kernels muster-proto
allow muster-trainer muster-kernels muster-allreduce muster-proto
allow muster-coordinator muster-proto
allow muster-bench muster-kernels muster-allreduce muster-trainer muster-proto
allow muster-amx-trap
[ $status -eq 0 ] && echo "crate arrows: as designed"
exit $status
