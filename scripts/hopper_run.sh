#!/usr/bin/env bash
# What scripts/hopper.sh packs as FOLDER/run.sh: everything that is to be seen on a GPU, in one go.
#
#   run.sh [all|STEP...]
#     check      the tests of the GPU, the example in C, the Python module with PyTorch
#     sanitize   compute-sanitizer, memcheck and racecheck, on small shapes
#     bench      halfbyte bench moe: short and steady times, w4a16 and w4a4, uniform and skewed
#     profile    ncu: the kernels of one step each of few, some and many tokens
#
# Results and logs go to $OUT or ./results. MODEL: a checkpoint for the example and the module
# (models/tiny-v4-nvfp4). SHAPE, TOKENS: of bench (v4-flash; 1,8,64,256,2048,8192). PROFILE: tokens
# of a profiled step (1 64 2048). Nothing of the card is set. Exits non-zero if a step failed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-$PWD/results}
model=${MODEL:-models/tiny-v4-nvfp4}
shape=${SHAPE:-v4-flash} tokens=${TOKENS:-1,8,64,256,2048,8192}
mkdir -p "$out"
export LD_LIBRARY_PATH=$here/lib PYTHONPATH=$here/python PATH=$PATH:/usr/local/cuda/bin
failed=()

# limited SECONDS NAME COMMAND...: its output goes to $out/NAME.txt.
limited() {
  local seconds=$1 name=$2 start=$SECONDS
  shift 2
  if timeout "$seconds" "$@" >"$out/$name.txt" 2>&1; then
    echo "$name: ok, $((SECONDS - start)) s"
  else
    echo "$name: FAILED with $? after $((SECONDS - start)) s; the end of $out/$name.txt:"
    tail -25 "$out/$name.txt"
    failed+=("$name")
  fi
}

run_check() {
  local test
  for test in "$here"/bin/*_test; do
    limited 120 "$(basename "$test")" "$test"
    tail -3 "$out/$(basename "$test").txt"
  done
  [[ -d $model ]] || { echo "no checkpoint at $model: the example is left out"; return; }
  limited 60 example_c "$here/bin/moe_cuda" "$model"
  [[ -d $here/python ]] || return
  [[ -e $here/models ]] || ln -s "$(cd "$model/.." && pwd)" "$here/models"
  limited 60 example_python python3 "$here/python/example.py" "$model"
  limited 200 python python3 -m pytest -q -rs -p no:cacheprovider "$here"/python/tests
  tail -4 "$out/python.txt"
}

run_sanitize() {
  local tool
  # Every kernel of the layer and its neighbours, on shapes that a sanitizer gets through.
  for tool in memcheck racecheck; do
    limited 150 "${tool}_layer" compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$here/bin/capi_cuda_test" --gtest_filter='*GivesTheBits*:*Captured*:*RoutesAs*:*Ranks*'
    limited 100 "${tool}_metadata" compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$here/bin/sparse_metadata_cuda_test"
    grep -h SUMMARY "$out/${tool}"_*.txt
  done
  # Not racecheck: it does not follow the barriers by which a ring's stage is given back.
  limited 100 memcheck_variants compute-sanitizer --tool memcheck --error-exitcode 9 \
    "$here/bin/moe_cuda_test" --gtest_filter='*InEveryVariant'
}

run_bench() {
  local routing report
  limited 30 explain "$here/bin/halfbyte" bench moe --device cuda --shape "$shape" \
    --tokens "$tokens" --explain
  for routing in uniform dirichlet:0.5; do
    report=$out/moe_${shape}_${routing%%:*}.json
    limited 150 "bench_${routing%%:*}" bash -c '"$@" >"$0"' "$report" "$here/bin/halfbyte" \
      bench moe --device cuda --json --shape "$shape" --tokens "$tokens" \
      --arithmetic w4a16,w4a4 --routing "$routing"
  done
}

run_profile() {
  local count
  for count in ${PROFILE:-1 64 2048}; do
    limited 90 "profile_$count" ncu --clock-control none --set basic --launch-skip 40 \
      --launch-count 12 --section SpeedOfLight --section WarpStateStats \
      "$here/bin/halfbyte" bench moe --device cuda --shape 4096,2048,32,6 --tokens "$count"
  done
}

[[ $# -gt 0 && $1 != all ]] || set -- check sanitize bench profile
for step in "$@"; do
  case $step in
    check | sanitize | bench | profile) echo "=== $step"; "run_$step" ;;
    *) echo "usage: run.sh [all|check|sanitize|bench|profile]..." >&2; exit 2 ;;
  esac
done
[[ ${#failed[@]} == 0 ]] || { echo "FAILED: ${failed[*]}"; exit 1; }
