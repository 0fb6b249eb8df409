#!/usr/bin/env bash
# Runs a compile command, and fails if ptxas notes that it put wgmma instructions in series (C7510,
# C7512, ...): the code is then right but several times slower, and nothing else says so.
output=$("$@" 2>&1)
status=$?
[[ -z $output ]] || echo "$output" >&2
if [[ $output =~ \(C75[0-9][0-9]\) ]]; then
  echo "$0: serialized wgmma: fewer widths in one kernel, or fewer registers in its loop" >&2
  exit 1
fi
exit $status
