"""What the peer scripts share: reading the data, the optimizer of the recipe, and batches."""

import csv
from pathlib import Path

import torch
from transformers import get_linear_schedule_with_warmup


def read_csv(path, text="text", label="category"):
    with Path(path).open(encoding="utf-8", newline="") as file:
        return [(row[text], row[label]) for row in csv.DictReader(file)]


def tokenize(tokenizer, texts, max_length):
    """Token ids of each text, truncated; padding is left to `collate`."""
    # A tokenizer.json may carry its own padding and truncation (MiniLM's does: always 128).
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length, padding=False)
    return encoded["input_ids"]


def collate(rows, pad_id):
    """Pads rows to the longest of them. Returns (ids, mask), both (rows, longest)."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad_id, dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return ids, mask


def adamw(model, learning_rate, weight_decay):
    """AdamW without decay on biases and LayerNorm, as HF Trainer groups parameters."""
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        (plain if name.endswith("bias") or "LayerNorm" in name else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8)


def linear_schedule(optimizer, steps, warmup_ratio):
    return get_linear_schedule_with_warmup(optimizer, int(steps * warmup_ratio + 0.999), steps)
