#!/bin/sh
# The learned probes that the package ships for smollm2-135m: the model's own text, then vectors on it.
# Usage: recipes/probes-smollm2.sh [FOLDER]   (minutes on a GPU, about an hour on two CPU cores)
set -eu
work=${1:-work}
multitoken data synthesize --count 1600 --out "$work/corpus.jsonl"
multitoken train probes --probes 3 --steps 400 --batch 2 --regions 48 --longest 192 --learning-rate 5e-3 \
  --data "$work/corpus.jsonl" --out "$work/probes"
multitoken generate "Why is the sky blue?" --method probe -o init=learned -o probes=2 -o checkpoint="$work/probes"
