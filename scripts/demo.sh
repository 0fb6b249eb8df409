#!/usr/bin/env bash
# From a fresh clone to an answer: installs what is missing, builds the program, and lets the
# bundled 4-bit model answer a question about the numbers it has just been told.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { echo "demo: $*" >&2; exit 1; }

scripts/setup.sh build || die "setup failed"
cmake --preset release || die "configuring failed"
cmake --build --preset release --target halfbyte || die "the build failed"

question="The number of cat is 123. The number of dog is 456. The number of bird is 789. \
What is the number of dog?"
command=(build/release/bin/halfbyte generate models/tiny-v4-nvfp4 --chat "$question"
         --temperature 0)
echo
echo "\$ ${command[*]:0:4} \"$question\" ${command[*]:5}"
"${command[@]}" 2>&1 | tee build/demo-answer.txt || die "halfbyte generate failed"
grep -qF "The number of dog is 456." build/demo-answer.txt ||
  die "expected the answer to say: The number of dog is 456."
