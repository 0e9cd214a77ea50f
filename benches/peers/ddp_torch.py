"""Times a training step of transformers models under DistributedDataParallel over Gloo, one process per rank.

The same work as step_torch.py: random weights, row lengths of banking77, dynamic padding, AdamW, clipping at norm 1.
Every rank takes its part of the global batch; rows are dealt as they come. Prints the median step of rank 0.

    python ddp_torch.py --ranks 2 --threads 1 deberta-v3-xsmall
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from recipe import adamw
from step_torch import BANKING77_QUANTILES, SHAPES, batches
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForSequenceClassification


def trimmed(ids, mask):
    """Cuts padding that no row of this part needs."""
    longest = int(mask.sum(1).max())
    return ids[:, :longest], mask[:, :longest]


def run(rank, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.set_num_threads(args.threads)
    for name in args.shapes:
        torch.manual_seed(1)
        config = SHAPES[name]()
        model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").train()
        optimizer = adamw(model, 5e-5, 0.01)
        wrapped = DistributedDataParallel(model)
        seconds = []
        for ids, mask, labels in batches(args, config.vocab_size, BANKING77_QUANTILES):
            mine = slice(rank, None, args.ranks)
            part, part_mask = trimmed(ids[mine], mask[mine])
            dist.barrier()
            began = time.perf_counter()
            loss = wrapped(input_ids=part, attention_mask=part_mask, labels=labels[mine]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            seconds.append(time.perf_counter() - began)
        step = statistics.median(seconds[args.warmup :])
        if rank == 0:
            print(
                f"{name:26} f32 {args.ranks} ranks of {args.threads} threads  batch {args.batch}  "
                f"{step:7.3f} s/step  {args.batch / step:7.1f} samples/s",
                flush=True,
            )
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=["deberta-v3-xsmall"], help=f"of: {', '.join(SHAPES)}")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--port", type=int, default=29511)
    args = parser.parse_args()
    mp.spawn(run, args=(args,), nprocs=args.ranks)


if __name__ == "__main__":
    main()
