#!/usr/bin/env python3
"""Writes the complete inventory of DeepSeek-V4-Flash or -Pro as sparse files: every name, dtype and
shape of the preview release (checkpoints.md, section 1), no data. The tables here are written down
independently of src/checkpoint/inventory.cc, so that the two check each other.

  make_inventory.py flash DIR            config.json, index and 46 shards
  make_inventory.py flash --totals       tensors and bytes only
  make_inventory.py flash --check HALFBYTE
      writes the files to a temporary directory, runs `halfbyte inspect --json` on them and fails
      unless totals and inventory come out right and peak memory stays below 500 MB
"""
import argparse
import json
import math
import os
import pathlib
import resource
import struct
import subprocess
import sys
import tempfile
import time

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "checkpoint"
# tensors, bytes, shards of the published releases
PUBLISHED = {"flash": (69187, 159609485896, 46), "pro": (145116, 864704792696, 64)}
SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "I64": 8}
MEMORY_LIMIT = 500_000_000


def fp8(name, rows, columns):
    yield name + ".weight", "F8_E4M3", [rows, columns]
    yield name + ".scale", "F8_E8M0", [math.ceil(rows / 128), math.ceil(columns / 128)]


def mxfp4(name, rows, columns):
    yield name + ".weight", "I8", [rows, columns // 2]
    yield name + ".scale", "F8_E8M0", [rows, columns // 32]


def hc_head(prefix, hidden):
    yield prefix + "hc_head_fn", "F32", [4, 4 * hidden]
    yield prefix + "hc_head_base", "F32", [4]
    yield prefix + "hc_head_scale", "F32", [1]


def block(prefix, c, ratio, hashed):
    d, h, rq, g = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["o_groups"]
    experts, width = c["n_routed_experts"], c["moe_intermediate_size"]
    for site in ("attn", "ffn"):
        yield f"{prefix}{site}_norm.weight", "BF16", [d]
        yield f"{prefix}hc_{site}_fn", "F32", [24, 4 * d]
        yield f"{prefix}hc_{site}_base", "F32", [24]
        yield f"{prefix}hc_{site}_scale", "F32", [3]
    attn = prefix + "attn."
    yield attn + "attn_sink", "F32", [h]
    yield from fp8(attn + "wq_a", rq, d)
    yield attn + "q_norm.weight", "BF16", [rq]
    yield from fp8(attn + "wq_b", 512 * h, rq)
    yield from fp8(attn + "wkv", 512, d)
    yield attn + "kv_norm.weight", "BF16", [512]
    yield from fp8(attn + "wo_a", 1024 * g, 512 * h // g)
    yield from fp8(attn + "wo_b", d, 1024 * g)
    if ratio:
        series = 2 if ratio == 4 else 1
        yield attn + "compressor.ape", "F32", [ratio, series * 512]
        for part in ("wkv", "wgate"):
            yield f"{attn}compressor.{part}.weight", "BF16", [series * 512, d]
        yield attn + "compressor.norm.weight", "BF16", [512]
    if ratio == 4:
        yield from fp8(attn + "indexer.wq_b", 8192, rq)
        yield attn + "indexer.weights_proj.weight", "BF16", [64, d]
        yield attn + "indexer.compressor.ape", "F32", [4, 256]
        for part in ("wkv", "wgate"):
            yield f"{attn}indexer.compressor.{part}.weight", "BF16", [256, d]
        yield attn + "indexer.compressor.norm.weight", "BF16", [128]
    ffn = prefix + "ffn."
    yield ffn + "gate.weight", "BF16", [experts, d]
    if hashed:
        yield ffn + "gate.tid2eid", "I64", [c["vocab_size"], c["num_experts_per_tok"]]
    else:
        yield ffn + "gate.bias", "F32", [experts]
    for e in range(experts):
        for name, rows, columns in (("w1", width, d), ("w2", d, width), ("w3", width, d)):
            yield from mxfp4(f"{ffn}experts.{e}.{name}", rows, columns)
    for name, rows, columns in (("w1", width, d), ("w2", d, width), ("w3", width, d)):
        yield from fp8(f"{ffn}shared_experts.{name}", rows, columns)


def inventory(c):
    d, vocabulary = c["hidden_size"], c["vocab_size"]
    yield "embed.weight", "BF16", [vocabulary, d]
    for layer in range(c["num_hidden_layers"]):
        yield from block(f"layers.{layer}.", c, c["compress_ratios"][layer],
                         layer < c["num_hash_layers"])
    yield "norm.weight", "BF16", [d]
    yield from hc_head("", d)
    yield "head.weight", "BF16", [vocabulary, d]
    for stage in range(c["num_nextn_predict_layers"]):
        prefix = f"mtp.{stage}."
        yield from block(prefix, c, 0, False)
        for name in ("enorm", "hnorm", "norm"):
            yield f"{prefix}{name}.weight", "BF16", [d]
        yield from fp8(prefix + "e_proj", d, d)
        yield from fp8(prefix + "h_proj", d, d)
        yield from hc_head(prefix, d)


def size_of(tensor):
    return math.prod(tensor[2]) * SIZES[tensor[1]]


def write_shard(path, tensors):
    header, offset = {}, 0
    for tensor in tensors:
        size = size_of(tensor)
        header[tensor[0]] = {"dtype": tensor[1], "shape": tensor[2],
                             "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)


def write(directory, config, shards):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    tensors = list(inventory(config))
    limit = sum(map(size_of, tensors)) / shards
    groups, filled = [[] for _ in range(shards)], 0
    for tensor in tensors:
        groups[min(int(filled / limit), shards - 1)].append(tensor)
        filled += size_of(tensor)
    weight_map = {}
    for i, group in enumerate(groups):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        write_shard(directory / name, group)
        weight_map.update((tensor[0], name) for tensor in group)
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": filled}, "weight_map": weight_map}))


def check(halfbyte, directory, model):
    start = time.monotonic()
    run = subprocess.run([halfbyte, "inspect", str(directory), "--json"], stdout=subprocess.PIPE)
    seconds = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if run.returncode != 0:
        sys.exit(f"halfbyte inspect failed with {run.returncode}")
    result = json.loads(run.stdout)
    found = (result["tensors"], result["bytes"], result["files"])
    print(f"{model}: {found[0]} tensors, {found[1]} bytes, {found[2]} files: {seconds:.2f} s, "
          f"peak {peak / 1e6:.0f} MB, {len(result['findings'])} findings")
    if found != PUBLISHED[model]:
        sys.exit(f"expected {PUBLISHED[model]}")
    if result["findings"]:
        sys.exit(f"expected no findings, but: {result['findings'][:5]}")
    if peak > MEMORY_LIMIT:
        sys.exit(f"peak memory above {MEMORY_LIMIT}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(PUBLISHED))
    parser.add_argument("directory", nargs="?", type=pathlib.Path)
    parser.add_argument("--totals", action="store_true")
    parser.add_argument("--check", metavar="HALFBYTE")
    arguments = parser.parse_args()
    config = json.loads((DATA / f"official-{arguments.model}-config.json").read_text())
    tensors = list(inventory(config))
    totals = (len(tensors), sum(map(size_of, tensors)))
    if totals != PUBLISHED[arguments.model][:2]:
        sys.exit(f"{arguments.model}: {totals}, but {PUBLISHED[arguments.model][:2]} is published")
    print(f"{arguments.model}: {totals[0]} tensors, {totals[1]} bytes")
    shards = PUBLISHED[arguments.model][2]
    if arguments.directory:
        write(arguments.directory, config, shards)
    if arguments.check:
        # Next to the build, not in /tmp, which may be a small file system in memory.
        with tempfile.TemporaryDirectory(dir=os.getcwd()) as directory:
            write(pathlib.Path(directory), config, shards)
            check(arguments.check, pathlib.Path(directory), arguments.model)


if __name__ == "__main__":
    main()
