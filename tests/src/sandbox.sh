# Makes a container out of a directory, as a container runtime would with the chart's settings, and starts a command in
# it. Runs in mount and pid namespaces of its own. Arguments: ROOT SHARED ENTER GROUPS COMMAND...; GROUPS are control
# groups to join, separated by colons.
set -eu
root=$1 shared=$2 enter=$3 groups=$4
shift 4

IFS=:
for group in $groups; do
    echo 0 >"$group/cgroup.procs"
done
unset IFS

mount --bind "$root" "$root"
cd "$root"
mkdir -p proc sys dev cache shared
mount -t proc -o nosuid,nodev,noexec proc proc
mount --rbind -o ro /sys sys
mount -t tmpfs -o size=64k,mode=755 dev dev
for device in null zero random urandom; do
    : >"dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
# What a runtime gives when the chart's storage.shm is empty.
mkdir dev/shm
mount -t tmpfs -o size=64m,mode=1777 shm dev/shm
mount -t tmpfs -o size=64m,mode=1777 tmp tmp
mount -t tmpfs -o size=256m,mode=1777 cache cache
mount --bind "$shared" shared
mount -o remount,bind,ro "$root"
exec "$enter" "$root" "$@"
