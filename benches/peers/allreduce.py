#!/usr/bin/env python3
"""All-reduce of floats: Muster against Open MPI and Gloo, in turns on one machine.

    benches/peers/allreduce.py --bench target/release/muster-bench [--torch-python PATH] [--ranks 2] [--rounds 3]

Open MPI needs mpicc and mpirun (Debian: openmpi-bin libopenmpi-dev); Gloo an interpreter with PyTorch. What is not
there is left out. Every program times the same batches and takes its slowest rank; a cell is the median of the
rounds' medians. Ratios are how many times as long the other one takes.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = "4:200:64,1024:200:32,16384:200:4,65536:200:2,262144:200:1,1048576:100:1,4194304:60:1,16777216:20:1,268435456:5:1"


def gloo(rank, ranks, store, cases):
    """One rank of Gloo; rank 0 prints a line of JSON per size."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks)
    for case in cases.split(","):
        count, samples, batch = (int(x) for x in case.split(":"))
        x = torch.full((count // 4,), float(rank + 1))
        dist.all_reduce(x)
        assert bool((x == ranks * (ranks + 1) / 2).all())
        times = []
        for s in range(samples + samples // 10):
            start = time.perf_counter()
            for _ in range(batch):
                dist.all_reduce(x)
            if s >= samples // 10:
                times.append((time.perf_counter() - start) * 1e6 / batch)
            x.zero_() if batch * s % 64 == 0 else None
        times.sort()
        mine = torch.tensor([times[0], times[samples // 2], times[(samples * 99 + 99) // 100 - 1]], dtype=torch.float64)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        if rank == 0:
            row = dict(zip(["min_us", "median_us", "p99_us"], mine.tolist()))
            print(json.dumps({"bytes": count, **row}), flush=True)
    dist.destroy_process_group()


def lines(command, **more):
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=300, **more).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def run_gloo(python, ranks, cases):
    with tempfile.TemporaryDirectory() as folder:
        role = lambda rank: [python, __file__, "gloo", str(rank), str(ranks), folder + "/store", cases]
        others = [subprocess.Popen(role(rank)) for rank in range(1, ranks)]
        try:
            return lines(role(0))
        finally:
            for process in others:
                process.wait(timeout=60)


def run_mpi(program, ranks, transport, place, cases):
    bind = "core" if ranks <= os.cpu_count() else "none"
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", bind, "-np", str(ranks)]
    return lines(command + ["--mca", "btl", "self," + transport, program, place] + cases.split(","))


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "gloo":
        return gloo(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="target/release/muster-bench", help="the program muster-bench")
    parser.add_argument("--torch-python", help="an interpreter with PyTorch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default=SIZES, help="bytes:samples:batch, ...")
    parser.add_argument("--paths", default="arena,arena-in-place,foreign", help="paths of Muster")
    parser.add_argument("--dtypes", default="f32,bf16", help="element types of Muster")
    parser.add_argument("--tcp", action="store_true", help="also Open MPI over TCP")
    options = parser.parse_args()

    runs = {}
    for dtype in options.dtypes.split(","):
        command = [options.bench, "allreduce", "--json", "--ranks", str(options.ranks), "--dtype", dtype]
        command += ["--sizes", options.sizes, "--paths", options.paths]
        runs["muster " + dtype] = lambda command=command: lines(command)
    with tempfile.TemporaryDirectory() as folder:
        if shutil.which("mpicc") and shutil.which("mpirun"):
            program = folder + "/allreduce_mpi"
            subprocess.run(["mpicc", "-O2", "-o", program, HERE + "/allreduce_mpi.c"], check=True)
            for place in ["apart", "in-place"]:
                args = (program, options.ranks, "vader", place, options.sizes)
                runs["mpi " + place] = lambda args=args: run_mpi(*args)
            if options.tcp:
                args = (program, options.ranks, "tcp", "in-place", options.sizes)
                runs["mpi tcp"] = lambda args=args: run_mpi(*args)
        if options.torch_python:
            runs["gloo"] = lambda: run_gloo(options.torch_python, options.ranks, options.sizes)
        cells = {}
        for _ in range(options.rounds):
            for name, run in runs.items():
                for row in run():
                    column = name + (" " + row["path"] if "path" in row else "")
                    cells.setdefault(column, {}).setdefault(row["bytes"], []).append(row["median_us"])
    table(cells, options)


def table(cells, options):
    median = {name: {size: statistics.median(x) for size, x in column.items()} for name, column in cells.items()}
    names = list(median)
    print(f"{options.ranks} ranks, median of {options.rounds} rounds, microseconds of the slowest rank\n")
    print("| bytes | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    sizes = sorted({size for column in median.values() for size in column})
    for size in sizes:
        row = [f"{median[n][size]:.2f}" if size in median[n] else "" for n in names]
        print(f"| {size} | " + " | ".join(row) + " |")
    pairs = [
        ("muster f32 arena", "mpi apart"),
        ("muster f32 arena-in-place", "mpi in-place"),
        ("muster f32 foreign", "mpi apart"),
        ("muster f32 arena", "gloo"),
        ("muster f32 arena-in-place", "gloo"),
        ("muster f32 foreign", "gloo"),
    ]
    pairs = [(ours, theirs) for ours, theirs in pairs if ours in median and theirs in median]
    print("\n| bytes | " + " | ".join(f"{theirs} / {ours}" for ours, theirs in pairs) + " |")
    print("|---" * (len(pairs) + 1) + "|")
    for size in sizes:
        ratios = [median[theirs][size] / median[ours][size] for ours, theirs in pairs]
        print(f"| {size} | " + " | ".join(f"{r:.2f}" for r in ratios) + " |")
    if "muster bf16 arena" in median:
        print("\nelements per second of bf16 over those of f32, at equal bytes:")
        for path in options.paths.split(","):
            f32, bf16 = median.get("muster f32 " + path, {}), median.get("muster bf16 " + path, {})
            both = [f"{size}: {2 * f32[size] / bf16[size]:.2f}" for size in sizes if size in f32 and size in bf16]
            print(f"  {path}: " + ", ".join(both))


if __name__ == "__main__":
    main()
