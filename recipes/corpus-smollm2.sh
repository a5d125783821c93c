#!/bin/sh
# The text that everything shipped for smollm2-135m is trained on: the model's own greedy answers, to questions that it
# wrote itself and to questions of GSM8K's training split (gsm8k_train.jsonl, see docs/benchmark.md).
# Usage: recipes/corpus-smollm2.sh FOLDER GSM8K_TRAIN   (about an hour on two CPU cores with bfloat16 units)
# It may be killed and run again; it goes on where it was.
set -eu
work=$1
questions=$2
multitoken=${MULTITOKEN:-multitoken}
"$multitoken" data synthesize --dtype bfloat16 --count "${OWN:-1300}" --rows 64 --out "$work/own.jsonl"
"$multitoken" data synthesize --dtype bfloat16 --count "${GSM8K:-500}" --rows 48 --answer-tokens 160 \
    --prompts "$questions" --field question --out "$work/gsm8k.jsonl"
# One corpus: the first file with its header, then the samples of the second.
cat "$work/own.jsonl" > "$work/corpus.jsonl"
tail -n +2 "$work/gsm8k.jsonl" >> "$work/corpus.jsonl"
