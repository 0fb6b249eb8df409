#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS [TARGET...]]
# Builds the fuzz preset and runs each fuzz target (X_fuzz) for SECONDS, default 60. Seeds are
# tests/data/fuzz/X/, words worth trying tests/data/fuzz/X.dict; both may be absent. What a run
# discovers is kept in build/fuzz/corpus/X_fuzz/ for the next one. Exits 1 if an input crashed, hung
# or took too much memory, and says where that input is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] ||
  { echo "usage: scripts/fuzz.sh [SECONDS [TARGET...]]" >&2; exit 2; }
shift || true

export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
cmake --preset fuzz
cmake --build --preset fuzz -j "$(nproc)" --target fuzz_targets

programs=("${@/#/build/fuzz/fuzz/}")
[[ $# -gt 0 ]] || programs=(build/fuzz/fuzz/*)

found=0
mkdir -p build/fuzz/crashes
for program in "${programs[@]}"; do
  name=${program##*/}
  [[ -x $program ]] || { echo "fuzz: there is no fuzz target $name" >&2; exit 2; }
  mkdir -p "build/fuzz/corpus/$name"
  data=tests/data/fuzz/${name%_fuzz}
  given=("build/fuzz/corpus/$name")
  [[ ! -d $data ]] || given+=("$data")
  [[ ! -f $data.dict ]] || given+=("-dict=$data.dict")
  echo "=== fuzz: $name for $seconds s"
  log=build/fuzz/crashes/$name.log
  if ! "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/crashes/$name-" "${given[@]}" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "fuzz: $name FAILED; run it again with: $program ${input:-(no input kept; see $log)}" >&2
    found=1
  else
    grep -E 'number_of_executed_units|average_exec_per_sec|peak_rss_mb' "$log" | sed 's/^/  /'
  fi
done
exit "$found"
