"""Fine-tunes a model in PyTorch + transformers with the recipe of examples/minilm/banking77.toml.

The comparison run for Muster: same data, same hyper-parameters, stock classes. Writes one JSON line
per step and prints the test accuracy and the speed.

    python train_torch.py --model ../../examples/minilm/model --data DIR --log torch.jsonl

DIR holds train.csv and test.csv with the columns text and category.

The same start and order as a Muster run, to compare loss by loss: `--model` a model that Muster saved (with its
head; labels in its order), `--order` the output of `muster bench order`, and dropout 0 in both.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from recipe import adamw, collate, linear_schedule, read_csv, tokenize
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="category")
    parser.add_argument("--log", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--warmup-ratio", type=float, default=0.1)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--max-grad-norm", type=float, default=1.0)
    parser.add_argument("--order", type=Path, help="rows of each step, from `muster bench order`")
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast")
    parser.add_argument("--max-steps", type=int, help="stop early (for a quick timing)")
    return parser.parse_args()


def load(args, split, tokenizer):
    rows = read_csv(args.data / f"{split}.csv", args.text, args.label)
    ids = tokenize(tokenizer, (text for text, _ in rows), args.max_length)
    return ids, [label for _, label in rows]


@torch.no_grad()
def accuracy(model, ids, targets, pad_id):
    model.eval()
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    correct = 0
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        tokens, mask = collate([ids[i] for i in chosen], pad_id)
        best = model(input_ids=tokens, attention_mask=mask).logits.argmax(-1).tolist()
        correct += sum(b == targets[i] for b, i in zip(best, chosen))
    model.train()
    return correct / len(ids)


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    train_ids, train_labels = load(args, "train", tokenizer)
    test_ids, test_labels = load(args, "test", tokenizer)
    config = AutoConfig.from_pretrained(args.model)
    names = sorted(set(train_labels))
    known = set(names) == set(config.label2id)
    index = config.label2id if known else {name: i for i, name in enumerate(names)}
    train_targets = [index[name] for name in train_labels]
    test_targets = [index[name] for name in test_labels]

    model = AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=len(names), dtype=torch.float32
    )
    model.train()
    per_epoch = math.ceil(len(train_ids) / args.batch)
    steps = per_epoch * args.epochs
    optimizer = adamw(model, args.lr, args.weight_decay)
    schedule = linear_schedule(optimizer, steps, args.warmup_ratio)
    generator = torch.Generator().manual_seed(args.seed)
    fixed = [json.loads(line) for line in args.order.open()] if args.order else None

    log = args.log.open("w")
    step, rows, tokens, busy = 0, 0, 0, 0.0
    for epoch in range(args.epochs):
        shuffled = torch.randperm(len(train_ids), generator=generator).tolist()
        for start in range(0, len(shuffled), args.batch):
            if args.max_steps is not None and step >= args.max_steps:
                break
            began = time.perf_counter()
            chosen = fixed[step] if fixed else shuffled[start : start + args.batch]
            ids, mask = collate([train_ids[i] for i in chosen], tokenizer.pad_token_id)
            labels = torch.tensor([train_targets[i] for i in chosen])
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            rate = optimizer.param_groups[0]["lr"]
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            seconds = time.perf_counter() - began
            step, rows, tokens = step + 1, rows + len(chosen), tokens + int(mask.sum())
            busy += seconds
            record = dict(
                step=step,
                epoch=step / per_epoch,
                loss=loss.item(),
                grad_norm=norm.item(),
                lr=rate,
                tokens=int(mask.sum()),
                seconds=round(seconds, 4),
            )
            log.write(json.dumps(record) + "\n")
            log.flush()
        result = accuracy(model, test_ids, test_targets, tokenizer.pad_token_id)
        print(
            f"epoch {epoch + 1}: test accuracy {result:.4f}, {rows / busy:.1f} samples/s, "
            f"{tokens / busy:.0f} real tokens/s, {busy:.0f} s in {step} steps",
            flush=True,
        )


if __name__ == "__main__":
    main()
