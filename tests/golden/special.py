#!/usr/bin/env python3
"""Golden numbers for every op at inf, NaN, subnormal and huge inputs, made with PyTorch in float32.

Usage: python tests/golden/special.py [--check] [FAMILY...]  (needs torch; writes tests/golden/special/FAMILY.jsonl)

The cases are those of tests/golden/cases, with some elements of their floating inputs replaced. What an op makes of
such values is a matter of its formula in the dtype it computes in, so the reference is float32, not float64. Cases of
many elements are left out: they add nothing here.
"""
import cases
import lines
import torch

INF, NAN = float("inf"), float("nan")
ELEMENTS = 300  # of all inputs of a case, at most
CRASHES = {("grid_sample", 1)}  # ops and inputs that end PyTorch's process where they are not finite: they stay as they are

SPREADING = {"fft"}  # families where each result hangs on a whole row: what an infinity leaves of it is a matter of order


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


def row(case, name, which):
    """The case with the inputs at `which` changed, or None where PyTorch refuses: probabilities outside 0 .. 1."""
    own = [x.float() if x is not None and x.is_floating_point() else x for x in case.inputs]
    inputs = list(own)
    for i in which:
        inputs[i] = CHANGES[name](inputs[i].clone(), int(case.words(f"place{i}").take(1)))
    try:
        outs, graded, leaves = case.run(inputs)
    except (RuntimeError, ValueError):
        return None
    results = {f"out{i}": o for i, o in enumerate(outs)}
    results |= {f"grad{i}": g for i, g in case.gradients(graded, leaves, [u.float() for u in case.ups]).items()}
    tensors = {f"in{i}": lines.tensor(inputs[i], own[i]) for i in which}
    tensors |= {name: lines.tensor(t) for name, t in results.items()}
    variant = f"{name}.{which[0] if len(which) == 1 else 'all'}"
    return {"name": f"{case.name}: {variant}", "tensors": tensors}


def rows(family):
    for case in cases.of_family(family):
        floating = [i for i, x in enumerate(case.inputs) if x is not None and x.is_floating_point() and x.numel() > 0
                    and (case.row["op"], i) not in CRASHES]
        if not floating or sum(x.numel() for x in case.inputs if x is not None) > ELEMENTS:
            continue
        for name in ["subnormal"] if family in SPREADING else CHANGES:
            # One input changes at a time, else there is little but NaN to see; elementwise, all of them.
            for which in [floating] if name in ("mixed", "subnormal") else [[i] for i in floating[:2]]:
                made = row(case, name, which)
                if made:
                    yield made


if __name__ == "__main__":
    lines.main("special", cases.FAMILIES, rows)
