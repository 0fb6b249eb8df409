"""One layer of a checkpoint on a GPU with PyTorch: captured once, replayed with other tokens.

    python3 main.py MODEL_DIR [LAYER]
"""
import sys

import halfbyte
import torch

layer = halfbyte.MoeLayer.open(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0,
                               device="cuda")
tokens, experts, width = 5, layer.info["experts"], layer.info["hidden"]
hidden = torch.zeros(tokens, width, dtype=torch.bfloat16, device="cuda")
logits = torch.zeros(tokens, experts, device="cuda")
token_ids = torch.arange(tokens, dtype=torch.int32, device="cuda")

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    ids, weights = layer.route(logits, token_ids)
    out = layer(hidden, ids, weights)

# The numbers of the examples in C, now in the buffers of the graph.
hidden.copy_((torch.arange(tokens * width) % 31 / 16 - 1).view(tokens, width))
logits.copy_((torch.arange(tokens * experts) * 7 % 23 / 8).view(tokens, experts))
graph.replay()
for t in range(tokens):
    print(f"token {t}, experts", *ids[t].tolist(), end=": ")
    print(*(f"{x:.6g}" for x in out[t, :4].tolist()), "...")
