#!/usr/bin/env bash
# The GPU side, for machines that have an H100 or H200 but none of our packages.
#
#   scripts/hopper.sh pack FOLDER [BUILD_DIR]
#
# builds the cuda preset (in build/cuda, or in BUILD_DIR, which must be one of it) and puts what
# runs on the GPU into FOLDER: stripped programs, the shared libraries of this machine that they
# need, the C library, and the Python module if BUILD_DIR was configured with -DHALFBYTE_PYTHON=ON
# for the Python of that machine. Copy FOLDER there and run
#
#   FOLDER/run.sh all          check, sanitize, bench and profile; results in $OUT or ./results
#   FOLDER/run.sh STEP...      some of them (scripts/hopper_run.sh says what each does)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} != pack || $# -lt 2 || $# -gt 3 ]]; then
  echo "usage: scripts/hopper.sh pack FOLDER [BUILD_DIR]" >&2
  exit 2
fi
folder=$2 build=${3:-build/cuda}

command -v nvcc >/dev/null || PATH+=:/usr/local/cuda/bin
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
[[ -e $build/CMakeCache.txt ]] || cmake --preset cuda -B "$build"
tests=(device_cuda_test quantize_nvfp4_cuda_test sparse_metadata_cuda_test sm90_gemm_test
       sm90_dense_test mma_sync_test cuda_router_test token_plan_test moe_cuda_test capi_cuda_test
       indexer_cuda_test elementwise_cuda_test swiglu_cuda_test hyper_connection_cuda_test
       kv_row_cuda_test compressor_cuda_test model_cuda_test)
targets=(halfbyte halfbyte_shared sm90_gemm_bench "${tests[@]}")
python=$(grep -q '^HALFBYTE_PYTHON:BOOL=ON' "$build/CMakeCache.txt" && echo yes || true)
[[ -z $python ]] || targets+=(halfbyte_python)
cmake --build "$build" -j "${JOBS:-$(nproc)}" --target "${targets[@]}"

mkdir -p "$folder"/{bin,lib}
for name in halfbyte sm90_gemm_bench "${tests[@]}"; do
  strip -o "$folder/bin/$name" "$(find "$build" -type f -name "$name" -perm -u+x | head -1)"
done
strip -o "$folder/lib/libhalfbyte.so.1" "$build/lib/libhalfbyte.so.1"
if [[ -n $python ]]; then
  mkdir -p "$folder/python"
  cp -r python/halfbyte python/tests "$folder/python"
  strip -o "$folder/python/halfbyte/_moe.so" "$(find "$build/python" -name '_moe*.so' | head -1)"
fi

# Everything but what every machine of this kind has.
ldd "$folder"/bin/* "$folder"/lib/libhalfbyte.so.1 | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
  sort -u | grep -Ev '/(libc|libm|libdl|librt|libpthread|libstdc..|libgcc_s|libcuda)\.so' |
  while read -r library; do strip -o "$folder/lib/$(basename "$library")" "$library"; done

# The example, for whoever wants to see the library used; libhalfbyte.so alone beside it.
gcc -O2 -std=gnu99 -Iinclude -isystem /usr/local/cuda/include examples/moe_cuda/main.c \
  -o "$folder/bin/moe_cuda" "$folder/lib/libhalfbyte.so.1" -L/usr/local/cuda/lib64 \
  -lcudart_static -lpthread -ldl -lrt -Wl,-rpath-link,"$folder/lib"
[[ -z $python ]] || cp examples/moe_cuda/main.py "$folder/python/example.py"
cp scripts/hopper_run.sh "$folder/run.sh"
du -sh "$folder"
