#!/usr/bin/env bash
# Everything that must hold before a change lands.
#
#   scripts/test.sh            all of the steps below, in this order (some 25 minutes on 2 cores
#                              with an empty compiler cache)
#   scripts/test.sh fast       formatting, and the release tests labelled fast
#   scripts/test.sh STEP...    format   clang-format-16 has nothing to say
#                              release  every test, optimized build
#                              asan     address and undefined-behaviour sanitizers: every test but
#                                       those labelled heavy
#                              tsan     thread sanitizer: the tests labelled threads
#                              cuda     the CUDA sources compile, where there is an nvcc
#                              outside  not among all: halfbyte against other people's packages, as
#                                       tests/outside/requirements.txt names them; the first run
#                                       downloads 3.0 GB and fills 5.5 GB of build/outside
#
# Exits non-zero if a step failed and says which. The last line sums the tests of all runs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

jobs=$(nproc)
# Let a clone in another folder find what ccache compiled in this one.
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1

failed_steps=()
passed=0 failed=0 skipped=0
# tests, failures, disabled and skipped at the head of the report that ctest writes
report_head='tests="([0-9]+)".* failures="([0-9]+)".* disabled="([0-9]+)".* skipped="([0-9]+)"'
# the same in pytest's report
pytest_head='errors="([0-9]+)" failures="([0-9]+)" skipped="([0-9]+)" tests="([0-9]+)"'

# build PRESET [TARGET]: configures and builds.
build() {
  cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs" ${2:+--target "$2"}
}

# run_tests PRESET CTEST_ARGUMENT...: runs tests and adds them to the sums.
run_tests() {
  local preset=$1 report status counts
  shift
  report=$PWD/build/$preset/test-report.xml
  rm -f "$report"
  ctest --preset "$preset" -j "$jobs" --no-tests=error --output-junit "$report" "$@" </dev/null
  status=$?
  counts=$(grep -m1 -A6 '<testsuite' "$report" 2>/dev/null | tr '\n\t' '  ')
  if [[ $counts =~ $report_head ]]; then
    local without=$((BASH_REMATCH[3] + BASH_REMATCH[4]))
    passed=$((passed + BASH_REMATCH[1] - BASH_REMATCH[2] - without))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + without))
  elif [[ $status == 0 ]]; then
    echo "test: ctest wrote no report to $report"
    status=1
  fi
  return $status
}

run_format() { scripts/format.sh --check; }
run_fast() { build release && run_tests release -L fast; }
run_release() { build release && run_tests release; }
run_asan() { build asan && run_tests asan -LE heavy; }
run_tsan() { build tsan threads_tests && run_tests tsan -L threads; }
run_cuda() {
  if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
    PATH+=:/usr/local/cuda/bin
  fi
  if ! command -v nvcc >/dev/null; then
    echo "test: no nvcc here, so no CUDA source was compiled"
  else  # host objects are then those of the release build
    cmake --preset cuda -B build/cuda-check -DHALFBYTE_PORTABLE=OFF &&
      cmake --build build/cuda-check -j "$jobs"
  fi
}

# The packages of tests/outside, in an environment of their own; installed when the list changes.
make_outside_environment() {
  local wanted=tests/outside/requirements.txt got=build/outside/requirements.txt start=$SECONDS
  if ! cmp -s "$wanted" "$got"; then
    rm -rf build/outside && /usr/bin/python3 -m venv build/outside/venv &&
      build/outside/venv/bin/pip install --quiet --no-compile -r "$wanted" &&
      cp "$wanted" "$got" || return
  fi
  echo "outside: $(du -sh build/outside | cut -f1) in build/outside, ready after" \
       "$((SECONDS - start)) s"
}
run_outside() {
  local report=$PWD/build/outside/test-report.xml status counts
  cmake --preset release && cmake --build --preset release -j "$jobs" --target halfbyte &&
    make_outside_environment || return
  rm -f "$report"
  HALFBYTE=$PWD/build/release/bin/halfbyte PYTHONDONTWRITEBYTECODE=1 \
    build/outside/venv/bin/python -m pytest -p no:cacheprovider --junit-xml "$report" \
    --durations=10 tests/outside </dev/null
  status=$?
  counts=$(grep -o '<testsuite [^>]*>' "$report" 2>/dev/null)
  if [[ $counts =~ $pytest_head ]]; then
    local bad=$((BASH_REMATCH[1] + BASH_REMATCH[2])) without=${BASH_REMATCH[3]}
    passed=$((passed + BASH_REMATCH[4] - bad - without))
    failed=$((failed + bad))
    skipped=$((skipped + without))
  fi
  return $status
}

# step NAME COMMAND...: runs it, says how long it took, remembers a failure.
step() {
  local name=$1 start=$SECONDS outcome=ok
  shift
  echo "=== $name"
  "$@" || { outcome=FAILED; failed_steps+=("$name"); }
  echo "=== $name: $outcome after $((SECONDS - start)) s"
  [[ $outcome == ok ]]
}

[[ $# -gt 0 ]] || set -- all
steps=()
for word in "$@"; do
  case $word in
    all) steps+=(format cuda asan tsan release) ;;
    fast) steps+=(format fast) ;;
    format | release | asan | tsan | cuda | outside) steps+=("$word") ;;
    *)
      echo "usage: scripts/test.sh [all|fast|format|release|asan|tsan|cuda|outside]..." >&2
      exit 2
      ;;
  esac
done

if step setup scripts/setup.sh; then
  for name in "${steps[@]}"; do step "$name" "run_$name"; done
fi

for name in ${failed_steps[@]+"${failed_steps[@]}"}; do echo "test: step $name FAILED"; done
echo "$passed passed, $failed failed, $skipped skipped"
[[ ${#failed_steps[@]} == 0 ]]
