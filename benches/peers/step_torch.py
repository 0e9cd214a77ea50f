"""Times a training step of transformers models, f32 or bf16 autocast, for the table beside `make bench`.

Random weights, row lengths as in banking77 (or those of --lengths), batches padded to their longest
row, attention "eager", AdamW, clipping at norm 1. Prints one line per shape: the median step.

    python step_torch.py --threads 2 --batch 32
"""

import argparse
import statistics
import time

import torch
from recipe import adamw, collate
from transformers import AutoModelForSequenceClassification, BertConfig, DebertaV2Config

# Tokens per row of banking77's training set under the MiniLM tokenizer, as quantiles 0, 5, ... 100 %.
BANKING77_QUANTILES = [4, 8, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 15, 15, 16, 17, 19, 22, 28, 37, 64]

V3 = dict(
    vocab_size=128100,
    relative_attention=True,
    max_relative_positions=-1,
    max_position_embeddings=512,
    position_buckets=256,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    pos_att_type="p2c|c2p",
    position_biased_input=False,
    type_vocab_size=0,
    layer_norm_eps=1e-7,
    num_labels=77,
)


def deberta(hidden, layers, heads, intermediate):
    shape = dict(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
    )
    return DebertaV2Config(**V3, **shape)


SHAPES = {
    "minilm": lambda: BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        num_labels=77,
    ),
    "deberta-v3-xsmall": lambda: deberta(384, 12, 6, 1536),
    "deberta-v3-large-4-layers": lambda: deberta(1024, 4, 16, 4096),
}


def lengths(count, quantiles, generator):
    """Draws row lengths by linear interpolation between the quantiles."""
    table = torch.tensor(quantiles, dtype=torch.float64)
    place = torch.rand(count, generator=generator, dtype=torch.float64) * (len(quantiles) - 1)
    low = place.floor().long()
    part = place - low
    return (table[low] * (1 - part) + table[low + 1] * part).round().long().tolist()


def batches(args, vocab, quantiles):
    generator = torch.Generator().manual_seed(1)
    for _ in range(args.warmup + args.steps):
        rows = [
            torch.randint(1000, vocab, (n,), generator=generator).tolist()
            for n in lengths(args.batch, quantiles, generator)
        ]
        ids, mask = collate(rows, 0)
        yield ids, mask, torch.randint(0, 77, (args.batch,), generator=generator)


def measure(name, args, quantiles):
    torch.manual_seed(1)
    config = SHAPES[name]()
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").train()
    optimizer = adamw(model, 5e-5, 0.01)
    if args.compile:
        model = torch.compile(model, dynamic=True)
    seconds, tokens = [], []
    for ids, mask, labels in batches(args, config.vocab_size, quantiles):
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        tokens.append(int(mask.sum()))
    step = statistics.median(seconds[args.warmup :])
    real = statistics.mean(tokens[args.warmup :])
    print(
        f"{name:26} {'bf16' if args.bf16 else 'f32'} {args.threads} threads  batch {args.batch}  {real:6.0f} real tokens/step  "
        f"{step:7.3f} s/step  {args.batch / step:7.1f} samples/s  {real / step:8.0f} real tokens/s",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=f"of: {', '.join(SHAPES)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast")
    parser.add_argument("--lengths", help="comma-separated quantiles of the row length, evenly spaced")
    args = parser.parse_args()
    quantiles = [int(n) for n in args.lengths.split(",")] if args.lengths else BANKING77_QUANTILES
    torch.set_num_threads(args.threads)
    for name in args.shapes:
        measure(name, args, quantiles)


if __name__ == "__main__":
    main()
