"""Draws the results of `halfbyte bench moe --json` beside the limits measured in the same run.

    python3 bench/plot_moe.py RESULT.json PLOT.png      (needs matplotlib)

Left: bytes of weights per second as a share of the read passes between the steps. Right: GFLOP/s
beside the peaks. Both over tokens per step.
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def rows_of(result, arithmetic):
    return sorted((row for row in result["rows"] if row["arithmetic"] == arithmetic),
                  key=lambda row: row["tokens"])


def main(source, target):
    with open(source, encoding="utf-8") as file:
        result = json.load(file)
    names = sorted({row["arithmetic"] for row in result["rows"]})
    limits, shape = result["limits"], result["shape"]
    figure, (memory, work) = plt.subplots(1, 2, figsize=(9, 3.6))
    for name in names:
        rows = rows_of(result, name)
        tokens = [row["tokens"] for row in rows]
        memory.plot(tokens, [100 * row["read_share"] for row in rows], marker="o", label=name)
        work.plot(tokens, [row["gflops"] for row in rows], marker="o", label=name)
    memory.axhline(100, color="gray", linestyle="--", label="reading only")
    memory.set_ylabel("weights read, % of the read test")
    for key, style in (("int8", ":"), ("bf16", "--"), ("fp32", "-.")):
        peak = limits[key + ("_gops" if key == "int8" else "_gflops")]
        if peak is not None:  # null: not measured on this device
            work.axhline(peak, color="gray", linestyle=style, label=f"{key} peak")
    work.set_ylabel("GFLOP/s")
    work.set_yscale("log")
    for axes in (memory, work):
        axes.set_xlabel("tokens per step")
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0 if axes is memory else None)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle(
        f"MoE layer {shape['hidden']}/{shape['intermediate']}, {shape['experts']} experts, "
        f"top-{shape['top_k']}: {result['cpu']}, {result['threads']} threads", fontsize=10)
    figure.tight_layout()
    figure.savefig(target, dpi=90)


if __name__ == "__main__":
    main(*sys.argv[1:])
