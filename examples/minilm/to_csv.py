"""Turns a folder of articles (topic/number.txt) into train.csv and test.csv.

Usage: to_csv.py ARTICLES OUTPUT. Columns: title (first line), body (the first paragraph after it) and topic.
Every fifth article of a topic, by number, is a test row. Of articles with the same title only the
first is kept, so that no test row is also a training row.
"""

import csv
import sys
from pathlib import Path


def article(path):
    # A few files are Latin-1; the pound sign is what differs.
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    lines = [line for line in lines if line]
    return (lines[0], lines[1]) if len(lines) > 1 else None


def main(articles, output):
    seen, rows = set(), {"train": [], "test": []}
    for folder in sorted(p for p in Path(articles).iterdir() if p.is_dir()):
        kept = 0
        for path in sorted(folder.glob("*.txt")):
            parts = article(path)
            if parts is None or parts[0].lower() in seen:
                continue
            seen.add(parts[0].lower())
            kept += 1
            rows["test" if kept % 5 == 0 else "train"].append((*parts, folder.name))
    for split, table in rows.items():
        with (Path(output) / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["title", "body", "topic"])
            writer.writerows(table)
        print(f"{split}: {len(table)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
