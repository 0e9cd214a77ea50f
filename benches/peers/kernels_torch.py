"""Times single kernels in PyTorch and in Muster, turn by turn, and prints the ratios.

Both run on the same cores in one interleaved run; a ratio is the median over the rounds. Attention is compared with
transformers' DeBERTa-v3 self-attention (eager), which includes the projections that both need: they are measured apart in
PyTorch and subtracted. MiB are what the first call adds to the process's resident memory.

    python kernels_torch.py --muster ../../target/release/muster --threads 2 [--only linear]
"""

import argparse
import json
import statistics
import subprocess
import time

import torch
from transformers import DebertaV2Config
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention


def median_seconds(call):
    """Like `muster bench`: about 300 ms, at least 5 calls, after one that is not counted."""
    call()
    samples, start = [], time.perf_counter()
    while len(samples) < 5 or (time.perf_counter() - start < 0.3 and len(samples) < 1000):
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples)


def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def grown_mib(call):
    """By how much the process grows in a call at its peak."""
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = resident("VmRSS:")
    call()
    return resident("VmHWM:") - before


class Muster:
    """A muster that times cases as they are asked for."""

    def __init__(self, binary, threads):
        self.process = subprocess.Popen(
            [binary, "bench", "kernels", "--serve", "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def time(self, case):
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=10)


def linear(dtype, which, rows, inputs, outputs):
    rows, inputs, outputs = int(rows), int(inputs), int(outputs)
    x, w = torch.rand(rows, inputs, dtype=dtype) - 0.5, torch.rand(outputs, inputs, dtype=dtype) - 0.5
    dy = torch.rand(rows, outputs, dtype=dtype) - 0.5
    gradient = torch.zeros(outputs, inputs, dtype=dtype)
    return {
        "forward": lambda: torch.nn.functional.linear(x, w),
        "dx": lambda: dy @ w,
        "dw": lambda: gradient.addmm_(dy.t(), x),
    }[which]


def attention(dtype, sequences, length, heads, dim):
    sequences, length, heads, dim = int(sequences), int(length), int(heads), int(dim)
    config = DebertaV2Config(
        hidden_size=heads * dim,
        num_attention_heads=heads,
        relative_attention=True,
        position_buckets=256,
        pos_att_type="p2c|c2p",
        share_att_key=True,
        max_relative_positions=-1,
        max_position_embeddings=512,
    )
    layer = DisentangledSelfAttention(config).to(dtype).train()
    x = torch.rand(sequences, length, heads * dim, dtype=dtype) - 0.5
    table = torch.rand(512, heads * dim, dtype=dtype) - 0.5
    x.requires_grad_()
    table.requires_grad_()
    mask = torch.ones(sequences, 1, length, length, dtype=torch.bool)

    def whole():
        layer.zero_grad()
        out = layer(x, mask, rel_embeddings=table)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    def projections():
        layer.zero_grad()
        parts = [f(x) for f in (layer.query_proj, layer.key_proj, layer.value_proj)]
        parts += [layer.query_proj(table), layer.key_proj(table)]
        sum(p.sum() for p in parts).backward()

    return whole, projections


def adamw(_dtype, count):
    weight = torch.nn.Parameter(torch.rand(int(count)) - 0.5)
    weight.grad = torch.rand(int(count)) - 0.5
    optimizer = torch.optim.AdamW([weight], lr=1e-5, weight_decay=0.01, fused=True)
    return optimizer.step


def norm(dtype, rows, cols):
    rows, cols = int(rows), int(cols)
    layer = torch.nn.LayerNorm(cols, eps=1e-7).to(dtype)
    x = (torch.rand(rows, cols, dtype=dtype) - 0.5).requires_grad_()
    residual = (torch.rand(rows, cols, dtype=dtype) - 0.5).requires_grad_()
    dy = torch.rand(rows, cols, dtype=dtype)

    def call():
        x.grad = residual.grad = None
        layer.zero_grad()
        layer(x + residual).backward(dy)

    return call


def peer(case):
    """How to time a case, and the MiB that its first call took."""
    kind, dtype, *rest = case.split()
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    if kind == "attention":
        whole, projections = attention(dtype, *rest)
        mib = -grown_mib(projections) + grown_mib(whole)
        return lambda: median_seconds(whole) - median_seconds(projections), mib
    call = {"linear": linear, "adamw": adamw, "norm": norm}[kind](dtype, *rest)
    mib = grown_mib(call)
    return lambda: median_seconds(call), mib


def compare(case, muster, rounds):
    """A line of the table: medians, and the median of the rounds' ratios."""
    seconds, their_mib = peer(case)
    ours, theirs, our_mib = [], [], []
    for _ in range(rounds):
        theirs.append(seconds())
        timed = muster.time(case)
        ours.append(timed["seconds"])
        our_mib.append(timed["grown"] / 2**20)
    ratio = statistics.median(t / o for t, o in zip(theirs, ours))
    mine, other = (1e3 * statistics.median(s) for s in (ours, theirs))
    return f"| {case} | {mine:.3f} | {other:.3f} | {ratio:.2f} | {our_mib[0]:.1f} | {their_mib:.1f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--muster", required=True, help="the muster binary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    listed = subprocess.run(
        [args.muster, "bench", "kernels", "--list", "--only", args.only], check=True, capture_output=True, text=True
    )
    print("| kernel | Muster ms | PyTorch ms | PyTorch / Muster | Muster MiB | PyTorch MiB |")
    print("|---|---|---|---|---|---|")
    for case in listed.stdout.splitlines():
        # A process of its own, so that memory kept from one case isn't there for the next.
        muster = Muster(args.muster, args.threads)
        print(compare(case, muster, args.rounds), flush=True)
        muster.close()


if __name__ == "__main__":
    main()
