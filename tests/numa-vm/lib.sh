# What the machine's process 1 asks, in the words of busybox.

STEPS=10
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
path = "/work/guest/model"
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
# Nobody may be given up here for being slow, or for being looked at.
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

allowed() { # pid
    awk '/^Cpus_allowed_list:/ { print $2 }' /proc/$1/status
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
    for task in /proc/$1/task/*; do
        cpus=$(awk '/^Cpus_allowed_list:/ { print $2 }' $task/status)
        [ "$(node_of_cpus "$cpus")" = "$2" ] || { echo "  $(cat $task/comm) may use CPUs $cpus"; return 1; }
        # Field 39 is the CPU that it runs on.
        cpu=$(sed 's/.*) //' $task/stat | awk '{ print $37 }')
        [ "$(node_of_cpus "$cpu")" = "$2" ] || { echo "  $(cat $task/comm) runs on CPU $cpu"; return 1; }
    done
}

# Own pages: anonymous ones, and those of the arena that carries the process's number. Both numbers, then in words.
count_pages() { # pid, node
    awk -v own="muster-shm-$1\\" -v node="N$2" '
        /file=/ && index($0, own) == 0 { next }
        { for (i = 3; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split($i, p, "="); all += p[2]; if (p[1] == node) mine += p[2]
            if (index($0, own)) arena += p[2] } }
        END { printf "%d %d %d\n", mine, all, arena }' /proc/$1/numa_maps
}

pages() { # pid, node
    count_pages "$@" | awk '{ printf "%d of %d own pages (%d of the arena) are local, %.2f %%", $1, $2, $3, 100 * $1 / $2 }'
}

local_enough() { # pid, node
    [ "$2" != mixed ] && count_pages "$@" | awk '
        { enough = $2 > 1000 && $3 > 100 && $1 >= 0.95 * $2 }
        END { exit !enough }'
}

# Established TCP connections of the machine.
connections() {
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == "01"' | wc -l
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
