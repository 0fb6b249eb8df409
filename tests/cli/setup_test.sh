#!/usr/bin/env bash
# scripts/setup.sh with stand-ins for the programs that look at the system and change it:
#   setup_test.sh REPOSITORY
set -uo pipefail
setup=$1/scripts/setup.sh
stubs=$(mktemp -d)
trap 'rm -rf "$stubs"' EXIT
failures=0

# stub NAME BODY: a program NAME that comes first on the PATH. Calls of apt-get are written down.
stub() { printf '#!/bin/bash\n%s\n' "$2" >"$stubs/$1" && chmod +x "$stubs/$1"; }

# expect NAME EXIT_CODE PATTERN: runs setup.sh and compares its exit code and output.
expect() {
  local output status
  : >"$stubs/calls"
  output=$(PATH=$stubs:$PATH CALLS=$stubs/calls bash "$setup" </dev/null 2>&1)
  status=$?
  output+=$'\n'$(cat "$stubs/calls")
  [[ $status == "$2" && $output =~ $3 ]] && return
  echo "FAILED: $1: exit code $status (expected $2), output does not match /$3/:"$'\n'"$output"
  failures=$((failures + 1))
}

# Pretends that every package is installed but those in the file `missing`.
stub dpkg-query 'for package in "$@"; do
  [[ $package == -* ]] || grep -qx "$package" "${0%/*}/missing" || echo -n "installed:$package "
done'
stub apt-get 'exit 1'
stub apt-cache 'echo "  Candidate: 1.0"'
stub sudo 'exit 1'
stub id 'echo 1000'

: >"$stubs/missing"
expect "nothing is missing" 0 'setup: all [0-9]+ packages are installed'

stub apt-get 'echo "apt-get $*" >>"$CALLS"; [[ " $* " != *" install "* ]] || : >"${0%/*}/missing"'
printf 'ccache\nlibfmt-dev\n' >"$stubs/missing"
expect "neither root nor sudo" 1 \
  'setup: cannot install without root or sudo.*: apt-get install ccache libfmt-dev'

stub sudo '[[ $1 != -n ]] || shift; exec "$@"'
expect "a user with sudo" 0 'all [0-9]+ packages.*apt-get .*install .*ccache libfmt-dev'

stub id 'echo 0'
printf 'ccache\n' >"$stubs/missing"
expect "root" 0 'all [0-9]+ packages.*apt-get .*install .*ccache'

printf 'ccache\n' >"$stubs/missing"
stub apt-cache 'echo "  Candidate: (none)"'
expect "a system without the package" 1 'do not offer: ccache .*apt-get .*update'

stub apt-cache 'echo "  Candidate: 1.0"'
stub apt-get 'echo "apt-get $*" >>"$CALLS"; exit 100'
expect "no network" 1 'could not install: ccache'

[[ $failures == 0 ]] && echo "setup.sh behaves"
