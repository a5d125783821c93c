#!/bin/sh
# Heads, span predictor and gate for smollm2-135m, as shipped in src/multitoken/artefacts/heads.
# On two CPU cores: about an hour for the text, half an hour for the states, forty minutes for each kind of heads.
# Every step may be killed and run again; it goes on where it was.
set -eu

model=${MODEL:-smollm2-135m}
work=${WORK:-work/heads}
count=${COUNT:-2000}
steps=${STEPS:-3000}
multitoken=${MULTITOKEN:-multitoken}
here=$(cd "$(dirname "$0")/.." && pwd)

# What the model writes itself: user turns by its own chat template, greedy answers.
"$multitoken" data synthesize --model "$model" --count "$count" --answer-tokens 128 --out "$work/corpus.jsonl"

# The paper's heads, this project's, and the baseline that competes with the model's own head.
for kind in sequential parallel competing; do
    "$multitoken" train heads --model "$model" --data "$work/corpus.jsonl" --states "$work/states" \
        --kind "$kind" --heads 4 --vocabulary 4096 --steps "$steps" --out "$work/$kind"
done
# A short horizon, to set beside the deep one.
"$multitoken" train heads --model "$model" --data "$work/corpus.jsonl" --states "$work/states" \
    --kind parallel --heads 2 --vocabulary 4096 --steps "$steps" --out "$work/parallel-2"

# The sequential heads ship with the package, without the gate, which is as large as they are.
"$multitoken" train heads --model "$model" --data "$work/corpus.jsonl" --states "$work/states" \
    --kind sequential --heads 4 --vocabulary 4096 --steps "$steps" --no-gate --out "$work/shipped"
fingerprint=$(sed -n 's/.*"fingerprint": "\(.*\)".*/\1/p' "$work/shipped/heads.json" | head -n 1)
target="$here/src/multitoken/artefacts/heads/$fingerprint"
mkdir -p "$target"
cp "$work/shipped/heads.json" "$work/shipped/heads.safetensors" "$target/"
echo "$target"
