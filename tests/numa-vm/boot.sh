#!/usr/bin/env bash
# boot.sh KERNEL INITRD: boots two sockets of two cores with a NUMA node each; the console goes to stdout. QEMU computes
# in software (no KVM), so every host can do it. Its exit code says nothing: what runs inside prints its verdict.
set -euo pipefail
# Pages must lie where they were touched: nothing may move or merge them afterwards.
append="console=ttyS0 no_timer_check quiet panic=-1 rdinit=/init transparent_hugepage=never numa_balancing=disable"
exec qemu-system-x86_64 -accel tcg,thread=multi -cpu max -M q35 -m 2G \
    -smp 4,sockets=2,cores=2,threads=1 \
    -object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G \
    -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 -numa dist,src=0,dst=1,val=21 \
    -kernel "$1" -initrd "$2" -append "$append" \
    -display none -serial stdio -monitor none -nic none -no-reboot
