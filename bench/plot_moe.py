"""Draws the results of `halfbyte bench moe --json` beside the limits measured in the same run.

    python3 bench/plot_moe.py RESULT.json... PLOT.png      (needs matplotlib)

Left: bytes of weights per second as a share of the read passes between the steps. Right: GFLOP/s
beside the peaks, on a GPU also under continuous load (thin). Both over tokens per step. Several
results, of one shape and machine, are told apart by their routing; the limits are the first one's.
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def rows_of(result, arithmetic):
    return sorted((row for row in result["rows"] if row["arithmetic"] == arithmetic),
                  key=lambda row: row["tokens"])


def draw(result, name, label, memory, work):
    rows = rows_of(result, name)
    tokens = [row["tokens"] for row in rows]
    memory.plot(tokens, [100 * row["read_share"] for row in rows], marker="o", label=label)
    (line,) = work.plot(tokens, [row["gflops"] for row in rows], marker="o", label=label)
    if all(row.get("steady_us") for row in rows):
        work.plot(tokens, [row["gflops"] * row["layer_us"] / row["steady_us"] for row in rows],
                  color=line.get_color(), linewidth=0.8)


def main(*arguments):
    *sources, target = arguments
    results = []
    for source in sources:
        with open(source, encoding="utf-8") as file:
            results.append(json.load(file))
    first = results[0]
    limits, shape = first["limits"], first["shape"]
    figure, (memory, work) = plt.subplots(1, 2, figsize=(9, 3.6))
    for result in results:
        for name in sorted({row["arithmetic"] for row in result["rows"]}):
            label = name if len(results) == 1 else f"{name}, {result['routing']}"
            draw(result, name, label, memory, work)
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
        f"top-{shape['top_k']}: {first['cpu']}, {first['threads']} threads", fontsize=10)
    figure.tight_layout()
    figure.savefig(target, dpi=90)


if __name__ == "__main__":
    main(*sys.argv[1:])
