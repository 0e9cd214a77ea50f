"""Checks a model that Muster saved against transformers, which must load it without any extra flag.

    muster predict --model OUTPUT --file texts.txt --json > predictions.jsonl
    python verify_export.py OUTPUT predictions.jsonl

Each line of predictions.jsonl is an object with `text` (and `text_pair` for pairs) and `logits`, or
`scores` if there are no logits (softmax, sigmoid or the value itself, by the model's problem_type).
Either is a list in label order or an object keyed by label. Exits with 1 if any value differs by
more than the tolerance.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def values(record, key, labels):
    found = record[key]
    return [found[label] for label in labels] if isinstance(found, dict) else found


def scores(logits, problem_type):
    if problem_type == "multi_label_classification":
        return logits.sigmoid()
    if problem_type == "regression":
        return logits
    return logits.softmax(-1)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--max-length", type=int, help="as in the run file; default: the tokenizer's limit")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    args = parser.parse_args()

    model = AutoModelForSequenceClassification.from_pretrained(args.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    labels = [model.config.id2label[i] for i in range(model.config.num_labels)]
    limit = args.max_length or min(tokenizer.model_max_length, model.config.max_position_embeddings)

    worst, worst_text, rows, kind = 0.0, None, 0, None
    for line in args.predictions.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        encoded = tokenizer(
            record["text"], record.get("text_pair"), truncation=True, max_length=limit, return_tensors="pt"
        )
        logits = model(**encoded).logits[0].double()
        kind = "logits" if "logits" in record else "scores"
        expected = logits if kind == "logits" else scores(logits, model.config.problem_type)
        got = torch.tensor(values(record, kind, labels), dtype=torch.float64)
        difference = (got - expected).abs().max().item()
        if not difference <= worst:  # also true for NaN
            worst, worst_text = difference, record["text"]
        rows += 1
    if rows == 0:
        sys.exit(f"{args.predictions} holds no predictions")
    print(f"{type(model).__name__}, {type(tokenizer).__name__}, labels {labels}")
    print(f"{rows} rows, largest difference of {kind} {worst:.2e} (limit {args.tolerance:.0e}), at {worst_text!r}")
    if not worst <= args.tolerance:
        sys.exit(1)


if __name__ == "__main__":
    main()
