"""One rank of a transformers model under DistributedDataParallel over Gloo, timed for `muster bench scaling`.

`muster bench scaling --torch-python PYTHON` starts a process of this for every rank, on the cores (and in the network
namespace) that a rank of Muster would have. The work is the same: the model's shape with random weights, the row lengths of
every step as Muster orders them, AdamW, clipping at norm 1; batches are padded to their longest row. The first rank
writes a line of JSON per step with the field names of Muster's metrics.jsonl.

By hand, two ranks in two terminals, R being 0 and 1:

    echo '[[12, 9, 30, 7], [8, 8, 14, 20]]' > steps.json
    python ddp_torch.py --config config.json --steps steps.json --log out.jsonl --ranks 2 --rank R
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from recipe import adamw, collate
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForSequenceClassification, BertConfig, DebertaV2Config

CLASSES = 77


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, type=Path, help="config.json of the model")
    parser.add_argument("--steps", required=True, type=Path, help="JSON: tokens of each row of each step")
    parser.add_argument("--log", required=True, type=Path, help="where the first rank writes")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--master", default="127.0.0.1:29511", help="where the first rank listens")
    parser.add_argument("--interface", default="lo", help="network interface of this rank")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast")
    parser.add_argument("--stay", action="store_true", help="after the last step wait for a signal")
    return parser.parse_args()


def model_of(path):
    values = json.loads(path.read_text())
    family = {"bert": BertConfig, "deberta-v2": DebertaV2Config}[values["model_type"]]
    config = family.from_dict({**values, "num_labels": CLASSES})
    return AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").train()


def batches(args, vocab):
    """This rank's part of each step: (ids, mask, labels, rows and tokens of the whole step)."""
    generator = torch.Generator().manual_seed(1)
    for lengths in json.loads(args.steps.read_text()):
        rows = [torch.randint(5, vocab, (n,), generator=generator).tolist() for n in lengths]
        labels = torch.randint(0, CLASSES, (len(rows),), generator=generator)
        # The longest rows first, in turns: parts of nearly equal length, and little padding.
        order = sorted(range(len(rows)), key=lambda i: -lengths[i])[args.rank :: args.ranks]
        ids, mask = collate([rows[i] for i in order], 0)
        yield ids, mask, labels[order], len(rows), sum(lengths)


def main():
    args = arguments()
    host, port = args.master.rsplit(":", 1)
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=port, GLOO_SOCKET_IFNAME=args.interface)
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", rank=args.rank, world_size=args.ranks)
    torch.manual_seed(1)
    model = model_of(args.config)
    optimizer = adamw(model, 1e-4, 0.01)
    # DDP divides the sum by the number of ranks: rows of a step are dealt evenly, so a mean of means is the mean.
    wrapped = DistributedDataParallel(model) if args.ranks > 1 else model
    log = args.log.open("w") if args.rank == 0 else None
    for step, (ids, mask, labels, rows, tokens) in enumerate(batches(args, model.config.vocab_size), 1):
        dist.barrier()
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            loss = wrapped(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        seconds = time.perf_counter() - began
        if log:
            record = dict(kind="train", step=step, loss=loss.item(), rows=rows, tokens=tokens, tokens_per_s=tokens / seconds)
            print(json.dumps(record), file=log, flush=True)
    if args.stay:
        signal.pause()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
