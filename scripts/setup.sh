#!/usr/bin/env bash
# Installs the Debian packages that halfbyte needs; does nothing, without network, if all are there.
#
#   scripts/setup.sh           everything: build, tests, formatter, fuzzer, MPI
#   scripts/setup.sh build     only what building and running the program takes (scripts/demo.sh)
#
# As root it uses apt-get, as a normal user sudo. Where neither works it names the missing packages
# and exits 1. The list matches cmake/halfbyte_dependencies.cmake.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build ccache pkgconf git python3
  libfmt-dev libspdlog-dev nlohmann-json3-dev libsimdjson-dev libcli11-dev libexpected-dev
  libpcre2-dev libicu-dev libssl-dev libboost1.81-dev libtomlplusplus-dev prometheus-cpp-dev
  libgtest-dev librapidcheck-dev libbenchmark-dev)
develop_packages=(
  clang-16 libclang-rt-16-dev clang-format-16 libopenmpi-dev openmpi-bin valgrind
  python3-venv curl chromium)

say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }

missing_packages() {  # prints those of "$@" that are not installed
  local installed package
  installed=" $(dpkg-query -W -f='${db:Status-Status}:${Package} ' "$@" 2>/dev/null || true)"
  for package in "$@"; do
    [[ $installed == *" installed:$package "* ]] || echo "$package"
  done
}

offered() {  # does apt know a version of package $1?
  [[ $(LC_ALL=C apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [^\(] ]]
}

not_offered() {  # prints those of "$@" that apt does not know
  local package
  for package in "$@"; do
    offered "$package" || echo "$package"
  done
}

# Sets as_root to what goes before a command that needs root: nothing, or sudo. Fails if there is
# no way. Asks for a password only where somebody can type it.
find_root() {
  as_root=()
  if [[ $(id -u) == 0 ]]; then return 0; fi
  command -v sudo >/dev/null || return 1
  if sudo -n true 2>/dev/null; then as_root=(sudo -n); return 0; fi
  [[ -t 0 ]] || return 1
  as_root=(sudo)
}

apt() {
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

install_packages() {
  local unknown
  say "installing: $*"
  if [[ -n $(not_offered "$@") ]]; then
    apt update
    unknown=$(not_offered "$@")
    if [[ -n $unknown ]]; then
      die "this system's package lists do not offer: ${unknown//$'\n'/ }" \
          "(halfbyte is built on Debian 12)"
    fi
  fi
  # A failure may come from package lists older than the mirror: refresh them and try once more.
  apt install --no-install-recommends "$@" ||
    { apt update && apt install --no-install-recommends "$@"; } ||
    die "apt-get could not install: $*"
}

report_optional_parts() {
  local nvcc=${CUDACXX:-$(command -v nvcc || true)}
  [[ -n $nvcc || ! -x /usr/local/cuda/bin/nvcc ]] || nvcc=/usr/local/cuda/bin/nvcc
  if [[ -n $nvcc ]]; then
    say "CUDA: $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/nvcc \1/p') ($nvcc)"
  else
    say "CUDA: no nvcc found; halfbyte runs on the CPU, the cuda preset is not available"
  fi
  if command -v clang++-16 >/dev/null; then
    say "clang: clang++-16 found, for the fuzz preset"
  else
    say "clang: no clang++-16; the fuzz preset is not available"
  fi
  if command -v mpirun >/dev/null; then
    say "MPI: $(mpirun --version | head -n 1); models run over several processes"
  else
    say "MPI: no mpirun; models run in one process, the test ranks_mpirun is skipped"
  fi
}

case ${1:-develop} in
  build) packages=("${build_packages[@]}") ;;
  develop) packages=("${build_packages[@]}" "${develop_packages[@]}") ;;
  *) echo "usage: scripts/setup.sh [build|develop]" >&2; exit 2 ;;
esac

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  die "this is not a Debian system; install what corresponds to: ${packages[*]}"

mapfile -t missing < <(missing_packages "${packages[@]}")
if [[ ${#missing[@]} -gt 0 ]]; then
  find_root ||
    die "cannot install without root or sudo; ask an administrator for:" \
        "apt-get install ${missing[*]}"
  install_packages "${missing[@]}"
  mapfile -t missing < <(missing_packages "${packages[@]}")
  [[ ${#missing[@]} == 0 ]] || die "still missing after installing: ${missing[*]}"
fi
say "all ${#packages[@]} packages are installed"
report_optional_parts
