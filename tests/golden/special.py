#!/usr/bin/env python3
"""Golden numbers for every op at inf, NaN, subnormal and huge inputs, made with PyTorch in float32.

Usage: python tests/golden/special.py        (needs torch and safetensors; writes tests/golden/special.safetensors)

The cases are those of ops.py, with some elements of their floating inputs replaced. What an op makes of such values is a matter of its
formula in the dtype it computes in, so the reference is float32, not float64. Cases of many elements are left out: they add nothing here.
"""
import os

import torch
from safetensors.torch import save_file

import ops

INF, NAN = float("inf"), float("nan")
ELEMENTS = 300  # of all inputs of a case, at most

# How inputs change: each function gets an input as float32 and a place in it that differs from input to input.
def one(value):
    def change(x, place):
        x.view(-1)[place % x.numel()] = value
        return x
    return change


def mixed(x, place):
    values = torch.tensor([INF, 1.0, -INF, NAN, 0.0, -0.0, 2.0**-24, 65504.0, -2.0, 2.0**-149, 3.0e38])
    flat = x.view(-1)
    for i in range(0, x.numel(), 2):
        flat[i] = values[(i // 2 + place) % len(values)]
    return x


CHANGES = {
    "inf": one(INF), "nan": one(NAN), "huge": one(3.0e38), "mixed": mixed,
    "subnormal": lambda x, place: x * 2.0**-135,
}

tensors = {}
for k, (case, (inputs, fn, ups)) in enumerate(zip(ops.cases, ops.calls)):
    floating = [i for i, x in enumerate(inputs) if x is not None and x.is_floating_point() and x.numel() > 0]
    if not floating or sum(x.numel() for x in inputs if x is not None) > ELEMENTS:
        continue
    for name, change in CHANGES.items():
        # One input changes at a time, else there is little but NaN to see; elementwise, all of them.
        for which in [floating] if name in ("mixed", "subnormal") else [[i] for i in floating[:2]]:
            leaves = []
            for i, x in enumerate(inputs):
                if x is not None and x.is_floating_point():
                    x = x.float().clone()
                    if i in which:
                        x = change(x, 3 * i + k)
                    x.requires_grad_(i in case["grad"])
                leaves.append(x)
            try:
                outs = fn(*leaves)
            except RuntimeError:
                continue  # what PyTorch refuses: probabilities outside 0 .. 1
            outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
            key = f"{k}.{name}.{which[0] if len(which) == 1 else 'all'}"
            for i in which:
                tensors[f"{key}.in{i}"] = leaves[i].detach().contiguous().clone()
            for i, o in enumerate(outs):
                tensors[f"{key}.out{i}"] = o.detach().contiguous().clone()
            graded = [o for o in outs if o.is_floating_point() and o.requires_grad]
            if case["grad"] and graded:
                grads = torch.autograd.grad(graded, [leaves[i] for i in case["grad"]], [u.float() for u in ups], allow_unused=True)
                for i, g in zip(case["grad"], grads):
                    tensors[f"{key}.grad{i}"] = (torch.zeros_like(leaves[i]) if g is None else g).contiguous().clone()

folder = os.path.dirname(os.path.abspath(__file__))
save_file(tensors, os.path.join(folder, "special.safetensors"), metadata={"made_with": "torch " + torch.__version__.split("+")[0]})
print(len(tensors), "tensors")
