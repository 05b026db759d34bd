#!/usr/bin/env python3
"""Golden numbers for every op at sizes 0 and 1, made with PyTorch in float64 and kept in float32.

Usage: python tests/golden/sizes.py [--check] [FAMILY...]    (needs torch; writes tests/golden/sizes/FAMILY.jsonl)

The cases are those of tests/golden/cases. For each size s of two or more among the dims of a case's inputs, every dim
of that size is cut to its first n = 0 and n = 1 elements. What PyTorch then refuses (a window larger than its image, an
index out of range, the maximum of nothing) is left out. The gradient that comes in is 0.75 everywhere.
"""
import warnings

import cases
import lines
import torch

warnings.filterwarnings("ignore")  # of variances over one element, which are NaN
ELEMENTS = 300  # of all inputs of a case, at most
UP = 0.75


def cut(x, size, n):
    for d, s in enumerate(x.shape):
        if s == size:
            x = x.narrow(d, 0, n)
    return x.contiguous()


def row(case, size, n):
    """The case with dims of that size cut to n, or None where PyTorch refuses."""
    try:
        outs, graded, leaves = case.run([None if x is None else cut(x, size, n) for x in case.inputs])
        grads = case.gradients(graded, leaves, [torch.full_like(o, UP) for o in graded])
    except (RuntimeError, IndexError, ValueError, AssertionError):
        return None
    tensors = {f"out{i}": o for i, o in enumerate(outs)} | {f"grad{i}": g for i, g in grads.items()}
    return {"name": f"{case.name}: {size} cut to {n}",
            "tensors": {name: lines.tensor(t.float()) for name, t in tensors.items()}}


def rows(family):
    for case in cases.of_family(family):
        given = [x for x in case.inputs if x is not None]
        if sum(x.numel() for x in given) > ELEMENTS:
            continue
        for size in sorted({s for x in given for s in x.shape if s > 1}):
            for n in (0, 1):
                made = row(case, size, n)
                if made:
                    yield made


if __name__ == "__main__":
    lines.main("sizes", cases.FAMILIES, rows)
