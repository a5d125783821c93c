#!/bin/sh
# The gated adapter that the package ships for smollm2-135m: the model's own text, then self-distilled masks on it.
# Usage: recipes/mask-smollm2.sh [FOLDER]   (for a GPU; two CPU cores need days for as many steps)
set -eu
work=${1:-work}
multitoken data synthesize --count 20000 --out "$work/corpus.jsonl"
multitoken train mask --adapter gated-lora --rank 8 --k-max 8 --steps 6000 --batch 32 --regions 16 --longest 192 \
  --learning-rate 1e-3 --warmup 200 --precision bfloat16 --data "$work/corpus.jsonl" --out "$work/mask"
multitoken generate "Why is the sky blue?" --method mask -o checkpoint="$work/mask"
