#!/usr/bin/env python3
"""Do two builds compute the same logits, to the bit?

    scripts/same_logits.py OLD NEW      paths of two halfbyte binaries

Runs both over the prompts of every golden in tests/data/goldens, with every arithmetic and both
maths, whole and in chunks, and compares the files they write. Exit status 1 if any differ. For
changes of structure that must not change a result.
"""
import filecmp
import itertools
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests/data/goldens"
MODELS = {"tiny-v4": ROOT / "models/tiny-v4-nvfp4"}  # the others hold their own weights
SETTINGS = [["--math", "fp32"]] + [["--arithmetic", a] for a in ("ref", "w4a16", "w4a8", "w4a4")]
CUTS = [[], ["--chunks", "1"], ["--chunks", "61,7,130"]]


def prompt(golden):
    """The first prompt stored in a golden, a list of token ids."""
    raw = (golden / "golden.safetensors").read_bytes()
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    for name, tensor in json.loads(raw[8:end]).items():
        if name.endswith("input_ids"):
            first, last = (end + offset for offset in tensor["data_offsets"])
            return list(struct.unpack(f"<{(last - first) // 4}i", raw[first:last]))[:1024]
    sys.exit(f"same_logits: {golden} holds no input_ids")


def logits(binary, model, ids, out, flags):
    """Writes `out`; or returns the sentence with which the build refused."""
    run = subprocess.run([binary, "logits", model, "--ids", ids, "--out", out, *flags],
                         capture_output=True, text=True)
    return run.stderr if run.returncode else None


def main(old, new):
    compared, refused, different = 0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        ids, a, b = (pathlib.Path(folder) / name for name in ("ids.json", "old", "new"))
        for golden in sorted(GOLDENS.glob("*/golden.safetensors")):
            golden = golden.parent
            ids.write_text(json.dumps(prompt(golden)))
            model = MODELS.get(golden.name, golden)
            for flags, cut in itertools.product(SETTINGS, CUTS):
                flags = flags + cut
                first, second = (logits(binary, model, ids, out, flags)
                                 for binary, out in ((old, a), (new, b)))
                if first and first == second:
                    refused += 1
                elif first or second or not filecmp.cmp(a, b, shallow=False):
                    different.append(f"{golden.name} {' '.join(flags)}: {first or second or ''}")
                compared += 1
    for line in different:
        print("DIFFERENT", line)
    print(f"{compared} runs of each build, {len(different)} different, {refused} refused by both")
    return 1 if different or compared == refused else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
