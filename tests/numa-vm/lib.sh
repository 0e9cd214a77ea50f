# What the machine's process 1 asks, in the words of busybox.

STEPS=16
LOOK_AT=2

# Forty short rows of two labels.
rows() {
    awk 'BEGIN {
        print "text,label"
        for (i = 0; i < 40; i++) print (i % 2 ? "profit rises at unit " : "loss widens at unit ") i "," (i % 2 ? "up" : "down")
    }'
}

run_file() { # name
    cat <<END
version = 1
name = "$1"
output_dir = "$1"
[model]
path = "/given/guest/model"
init = "random"
[task]
type = "single_label"
[data]
train = "rows.csv"
max_length = 16
cache_dir = "cache"
[train]
max_steps = $STEPS
global_batch = 4
learning_rate = 1e-3
precision = "f32"
log_every_steps = 1
[ranks]
# Nobody may be given up here for being slow.
patience_s = 3600
END
}

lines() { # run
    cat "$1/metrics.jsonl" 2>/dev/null | wc -l
}

rank_processes() {
    for dir in /proc/[0-9]*; do
        tr '\0' ' ' <$dir/cmdline 2>/dev/null | grep -q '^[^ ]*muster rank' && basename $dir
    done
}

# What the system says of a process, kept: what is looked at goes on meanwhile, and everything is slow here.
keep() { # pid
    mkdir -p seen/$1
    cat /proc/$1/numa_maps >seen/$1/numa_maps
    cat /proc/$1/task/*/stat >seen/$1/stats
    grep -h '^Cpus_allowed_list:' /proc/$1/status /proc/$1/task/*/status >seen/$1/allowed
}

# The CPUs of its first thread.
allowed() { # pid
    awk 'NR == 1 { print $2 }' seen/$1/allowed
}

# The NUMA node of a CPU list of this machine; "mixed" if it is not one.
node_of_cpus() {
    case "$1" in
    0-1 | 0 | 1) echo 0 ;;
    2-3 | 2 | 3) echo 1 ;;
    *) echo mixed ;;
    esac
}

threads_within() { # pid, node
    [ "$(wc -l <seen/$1/stats)" -ge 5 ] || { echo "  it has $(wc -l <seen/$1/stats) threads"; return 1; }
    for cpus in $(awk '{ print $2 }' seen/$1/allowed); do
        [ "$(node_of_cpus "$cpus")" = "$2" ] || { echo "  a thread may use CPUs $cpus"; return 1; }
    done
    # Field 39 is the CPU that a thread runs on, or ran on last.
    for cpu in $(sed 's/.*) //' seen/$1/stats | awk '{ print $37 }'); do
        [ "$(node_of_cpus "$cpu")" = "$2" ] || { echo "  a thread runs on CPU $cpu"; return 1; }
    done
}

# Own pages: anonymous ones, and those of the arena that carries the process's number. On the node, in all, of the arena.
count_pages() { # pid, node
    awk -v own="muster-shm-$1\\" -v node="N$2" '
        /file=/ && index($0, own) == 0 { next }
        { for (i = 3; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split($i, p, "="); all += p[2]; if (p[1] == node) mine += p[2]
            if (index($0, own)) arena += p[2] } }
        END { printf "%d %d %d\n", mine, all, arena }' seen/$1/numa_maps
}

pages() { # pid, node
    count_pages "$@" |
        awk '{ printf "%d of %d own pages (%d of the arena) are local, %.2f %%", $1, $2, $3, $2 ? 100 * $1 / $2 : 0 }'
}

local_enough() { # pid, node
    count_pages "$@" | awk '
        { enough = $2 > 1000 && $3 > 100 && $1 >= 0.95 * $2 }
        END { exit !enough }'
}

# Established TCP connections of the machine.
connections() {
    awk '$4 == "01"' seen/tcp | wc -l
}

# Losses by step, of a run's log.
losses() { # run
    sed -n 's/.*"kind":"train".*"step":\([0-9]*\).*"loss":\([-+.0-9eE]*\).*/\1 \2/p' "$1/metrics.jsonl"
}

same_losses() { # run, run
    losses $1 >a
    losses $2 >b
    awk -v steps=$STEPS '
        NR == FNR { one[$1] = $2; next }
        { d = one[$1] - $2; if (d < 0) d = -d; if (d > 1e-4) { print "  step " $1 ": " one[$1] " and " $2; bad = 1 } n++ }
        END { exit bad || n != steps }' a b
}

# The shares that results.json has for the two ranks.
reported() {
    grep -o '"numa_local":[ ]*[0-9.]*' two/results.json | sed 's/.*://' | tr -d ' ' | tr '\n' ' '
}
