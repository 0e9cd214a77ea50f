#!/bin/sh
# Trains model/spm.model on the texts of train.csv; the test rows are not seen.
# Needs spm_train (Debian: apt install sentencepiece) and python3. Same file, same bytes.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$PWD
python3 -c '
import csv
for row in csv.DictReader(open("train.csv", encoding="utf-8", newline="")):
    print(row["text"])' >"$work/texts"
cd "$work"
# Special pieces and byte fallback as in the spm.model of DeBERTa-v3. [MASK] is not a piece: it
# has the id after the last one. Digits stand alone: pieces like 0 and 00 would tie in numbers, and libraries break ties
# differently.
spm_train --input=texts --model_prefix=spm --model_type=unigram --vocab_size=1000 \
  --byte_fallback=true --split_digits=true --character_coverage=1.0 --num_threads=1 \
  --pad_id=0 --bos_id=1 --eos_id=2 --unk_id=3 \
  --pad_piece='[PAD]' --bos_piece='[CLS]' --eos_piece='[SEP]' --unk_piece='[UNK]' \
  --minloglevel=1
cp spm.model "$here/model/spm.model"
