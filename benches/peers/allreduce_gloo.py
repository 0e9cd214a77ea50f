"""One rank of an all-reduce of floats over Gloo, timed as `muster bench allreduce` times: batches, the slowest rank.

    python allreduce_gloo.py RANK RANKS STORE bytes:samples:batch,...

STORE is a file that all ranks share. Rank 0 prints a line of JSON per size. `muster bench allreduce --torch-python PYTHON`
starts the ranks.
"""

import json
import sys
import time

import torch
import torch.distributed as dist


def main():
    rank, ranks, store, cases = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
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
        taken = list(times)
        times.sort()
        mine = torch.tensor([times[0], times[samples // 2], times[(samples * 99 + 99) // 100 - 1]], dtype=torch.float64)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        if rank == 0:
            row = dict(zip(["min_us", "median_us", "p99_us"], mine.tolist()))
            print(json.dumps({"bytes": count, **row, "samples_us": taken}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
