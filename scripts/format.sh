#!/usr/bin/env bash
# scripts/format.sh          formats the tracked C++ and CUDA sources with clang-format-16
# scripts/format.sh --check  changes nothing, lists what is not formatted, exits 1 if there is any
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v clang-format-16 >/dev/null ||
  { echo "format: clang-format-16 is missing; run scripts/setup.sh" >&2; exit 1; }

mapfile -d '' -t files < <(git ls-files -z -- src include tests bench examples python |
                           grep -zE '\.(h|hpp|c|cc|inc|cu|cuh)$')
[[ ${#files[@]} -gt 0 ]] || { echo "format: git lists no source files here" >&2; exit 1; }

case ${1:-} in
  "") clang-format-16 -i "${files[@]}" ;;
  --check)
    bad=0
    for file in "${files[@]}"; do
      clang-format-16 --dry-run --Werror "$file" 2>/dev/null && continue
      echo "format: $file" >&2
      bad=$((bad + 1))
    done
    [[ $bad == 0 ]] ||
      { echo "format: $bad of ${#files[@]} files differ; run scripts/format.sh" >&2; exit 1; }
    echo "format: all ${#files[@]} files are formatted" ;;
  *) echo "usage: scripts/format.sh [--check]" >&2; exit 2 ;;
esac
