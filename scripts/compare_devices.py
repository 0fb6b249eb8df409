#!/usr/bin/env python3
"""Does a model compute the same on a GPU as on the CPU, and always the same on the GPU?

    scripts/compare_devices.py HALFBYTE MODEL_DIR IDS.json

HALFBYTE is a binary of the cuda preset, IDS.json a list of some thousand token ids of a text.
Compares logits and perplexity of both devices, and logits of the GPU in chunks of several sizes,
which must have the same bits. The CPU's own noise is the yardstick: its arithmetic with exact sums
(--arithmetic ref). Exit status 1 if the GPU is farther from the CPU than 1.25 times that, if its
perplexity is more than 0.002 nats away, or if bits differ.
"""
import array
import filecmp
import json
import math
import pathlib
import subprocess
import sys
import tempfile

GPU = ["--device", "cuda"]
CHUNKS = ["1", "7,1,130,61", "500,3"]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"compare_devices: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def rows(path):
    """The rows of a file of `halfbyte logits`."""
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    numbers = array.array("f")
    numbers.frombytes(raw[end:])
    width = json.loads(raw[8:end])["logits"]["shape"][1]
    return [numbers[at:at + width] for at in range(0, len(numbers), width)]


def compare(a, b):
    """How far a is from b, relative; and in how many rows another token is first."""
    error = size = others = 0
    for x, y in zip(rows(a), rows(b)):
        error += sum((p - q) * (p - q) for p, q in zip(x, y))
        size += sum(q * q for q in y)
        others += x.index(max(x)) != y.index(max(y))
    return math.sqrt(error / size), others


def main(halfbyte, model, ids):
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        def logits(name, *flags):
            out = pathlib.Path(folder) / name
            run(halfbyte, "logits", model, "--ids", ids, "--out", out, *flags)
            return out

        def nll(*flags):
            return json.loads(run(halfbyte, "perplexity", model, "--ids", ids, "--context", 1500,
                                  "--json", *flags))["nll"]

        cpu, gpu = logits("cpu"), logits("gpu", *GPU)
        noise, others = compare(logits("judge", "--arithmetic", "ref"), cpu)
        gpu_noise, gpu_others = compare(gpu, cpu)
        print(f"logits: {gpu_noise:.4g} from the CPU's (judge: {noise:.4g}), another token first "
              f"in {gpu_others} rows (judge: {others})")
        if gpu_noise > 1.25 * noise:
            faults.append("the GPU's logits are too far from the CPU's")
        for chunks in CHUNKS:
            if not filecmp.cmp(logits("chunks", *GPU, "--chunks", chunks), gpu, shallow=False):
                faults.append(f"other bits in chunks of {chunks}")
        cpu_nll, gpu_nll = nll(), nll(*GPU)
        print(f"perplexity: {gpu_nll:.5f} nats, on the CPU {cpu_nll:.5f}")
        if abs(gpu_nll - cpu_nll) > 0.002:
            faults.append("perplexities differ by more than 0.002 nats")
    print("\n".join(faults) or "the devices agree")
    return 1 if faults else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
