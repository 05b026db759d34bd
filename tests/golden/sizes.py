#!/usr/bin/env python3
"""Golden numbers for every op at sizes 0 and 1, made with PyTorch in float64.

Usage: python tests/golden/sizes.py          (needs torch and safetensors; writes tests/golden/sizes.safetensors)

The cases are those of ops.py. For each size s of two or more among the dims of a case's inputs, every dim of that size is cut to its first
n = 0 and n = 1 elements. What PyTorch then refuses (a window larger than its image, an index out of range, the maximum of nothing) is left
out. The gradient that comes in is 0.75 everywhere. All numbers lie in one tensor, in the order of the list in the metadata.
"""
import json
import os
import warnings

import torch
from safetensors.torch import save_file

import ops

warnings.filterwarnings("ignore")  # of variances over one element, which are NaN
ELEMENTS = 300  # of all inputs of a case, at most
UP = 0.75


def cut(x, size, n):
    for d, s in enumerate(x.shape):
        if s == size:
            x = x.narrow(d, 0, n)
    return x.contiguous()


def run(case, inputs, fn, size, n):
    """Outputs and gradients by position of input, or None where PyTorch refuses."""
    leaves = [None if x is None else cut(x, size, n).clone().requires_grad_(i in case["grad"]) for i, x in enumerate(inputs)]
    try:
        outs = fn(*leaves)
        outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        graded = [o for o in outs if o.is_floating_point() and o.requires_grad]
        if not (case["grad"] and graded):
            return outs, {}
        grads = torch.autograd.grad(graded, [leaves[i] for i in case["grad"]], [torch.full_like(o, UP) for o in graded], allow_unused=True)
    except (RuntimeError, IndexError, ValueError, AssertionError):
        return None
    return outs, {i: torch.zeros_like(leaves[i]) if g is None else g for i, g in zip(case["grad"], grads)}


rows, numbers = [], []
for k, (case, (inputs, fn, _)) in enumerate(zip(ops.cases, ops.calls)):
    given = [x for x in inputs if x is not None]
    if sum(x.numel() for x in given) > ELEMENTS:
        continue
    for size in sorted({s for x in given for s in x.shape if s > 1}):
        for n in (0, 1):
            result = run(case, inputs, fn, size, n)
            if result is None:
                continue
            outs, grads = result
            rows.append({"case": k, "size": size, "n": n, "outs": [list(o.shape) for o in outs], "grads": {str(i): list(g.shape) for i, g in grads.items()}})
            numbers += [t.detach().reshape(-1).float() for t in outs + list(grads.values())]

folder = os.path.dirname(os.path.abspath(__file__))
metadata = {"rows": json.dumps(rows, separators=(",", ":")), "made_with": "torch " + torch.__version__.split("+")[0]}
save_file({"numbers": torch.cat(numbers)}, os.path.join(folder, "sizes.safetensors"), metadata=metadata)
print(len(rows), "rows")
