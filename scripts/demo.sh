#!/usr/bin/env bash
# From a bare Debian 12 to samples of a language model: packages, build, corpus, tokenizer, training, generation.
set -euo pipefail
cd "$(dirname "$0")/.."
step() { printf '\n== %s\n' "$*"; }
SECONDS=0

step "Packages and build"
scripts/install_packages.sh build demo
make --no-print-directory all
yoke=build/yoke

step "The King James Bible: one file a chapter, one line a verse"
corpus=build/demo/corpus
rm -rf build/demo && mkdir -p "$corpus"
# `bible -f` prints lines like "Ge1:1 In the beginning ..."; the reference becomes the file's name.
bible -f gen1:1-rev22:21 | awk -v folder="$corpus" '{
  split($1, place, ":"); verse = $0; sub(/^[^ ]+ /, "", verse)
  file = folder "/" place[1] ".txt"
  if (file != open) { if (open) close(open); open = file }
  print verse > file
}'
echo "$(ls "$corpus" | wc -l) chapters, $(cat "$corpus"/*.txt | wc -c) bytes"

step "A tokenizer of 2048 pieces"
$yoke tokenizer train "$corpus"/*.txt --vocab-size 2048 --output build/demo/tokenizer

step "Training (examples/kjv/recipe.yaml)"
rm -rf runs/kjv
before=$SECONDS
$yoke train examples/kjv/recipe.yaml
echo "trained in $((SECONDS - before)) s"
awk 'match($0, /"loss": *[0-9.]+/) {
  loss = substr($0, RSTART, RLENGTH); sub(/.*: */, "", loss); if (first == "") first = loss; last = loss
} END { printf "training loss: %.3f at first, %.3f at last\n", first, last }' runs/kjv/metrics.jsonl

step "Samples"
for prompt in "In the beginning" "And the LORD spake unto Moses, saying," "Blessed are they"; do
  printf -- '--- yoke generate runs/kjv/model --prompt "%s"\n' "$prompt"
  $yoke generate runs/kjv/model --prompt "$prompt" --max-tokens 120 --temperature 0.7 --seed 4
  echo
done
echo "done in $((SECONDS / 60)) min $((SECONDS % 60)) s; yours to try: $yoke generate runs/kjv/model --prompt '...'"
