#!/usr/bin/env bash
# Trains the headlines model, prints its results and asks it about new sentences. Usage: demo.sh MUSTER
set -euo pipefail
muster=$(realpath "${1:-target/release/muster}")
here=$(cd "$(dirname "$0")" && pwd)
out=$here/runs/demo

# The demo owns this folder; `muster train` itself refuses to overwrite a run.
rm -rf "$out"
"$muster" plan "$here/run.toml"
"$muster" train "$here/run.toml" --set output_dir="$out"
echo
"$muster" predict --model "$out/final" \
    --text "Steelmaker warns of weak demand, shares fall" \
    --text "Retailer lifts its outlook after a strong quarter" \
    --text "Insurer to publish its annual report on Tuesday"
echo
echo "The model is a Hugging Face directory: $out/final"
