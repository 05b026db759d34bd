#!/usr/bin/env python3
"""Golden numbers for attention over heads of several widths, and for its gradients, made with PyTorch in float64.

Usage: python tests/golden/attention.py      (needs torch and safetensors; writes tests/golden/attention.safetensors)

Inputs and the gradients that come in are multiples of 1/16, which every floating dtype holds exactly; results are kept in float32. Sizes lie on both
sides of those of a tile, and of what a head's columns are padded to.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

# heads, heads of key and value, times of query and key, columns of query and key and of value, causal, mask
CASES = [
    (2, 1, 17, 17, 16, 16, True, None),
    (1, 1, 64, 65, 40, 40, False, None),
    (4, 2, 33, 33, 80, 24, True, None),
    (1, 1, 1, 17, 128, 64, False, "float"),
    (1, 1, 20, 20, 160, 160, True, None),
    (1, 1, 17, 9, 256, 256, False, "bool"),
]
torch.manual_seed(5)
tensors, cases = {}, []


def rand(*shape):
    return torch.randint(-32, 33, shape).double() / 16


for k, (heads, key_heads, tq, tk, e, ev, causal, mask) in enumerate(CASES):
    q, key, v, up = rand(1, heads, tq, e), rand(1, key_heads, tk, e), rand(1, key_heads, tk, ev), rand(1, heads, tq, ev)
    m = None if mask is None else rand(tq, tk) if mask == "float" else torch.rand(tq, tk) > 0.4
    if mask == "bool":
        m[:, 0] = True
    leaves = [x.clone().requires_grad_() for x in (q, key, v)]
    y = F.scaled_dot_product_attention(*leaves, attn_mask=m, is_causal=causal, enable_gqa=heads != key_heads)
    grads = torch.autograd.grad(y, leaves, up)
    named = dict(zip(("query", "key", "value", "up", "y", "dquery", "dkey", "dvalue"), (q, key, v, up, y, *grads)))
    for name, t in named.items():
        tensors[f"{k}.{name}"] = t.detach().float().contiguous()
    if m is not None:
        tensors[f"{k}.mask"] = m if mask == "bool" else m.float()
    cases.append({"causal": causal, "mask": mask is not None})

folder = os.path.dirname(os.path.abspath(__file__))
save_file(tensors, os.path.join(folder, "attention.safetensors"), metadata={"cases": json.dumps(cases), "made_with": "torch " + torch.__version__.split("+")[0]})
print(len(cases), "cases,", len(tensors), "tensors")
