#!/usr/bin/env python3
"""Golden numbers for every op, made with PyTorch in float64.

Usage: python tests/golden/ops.py [--check] [FAMILY...]      (needs torch; writes tests/golden/ops/FAMILY.jsonl)

The cases of a family stand in tests/golden/cases/FAMILY.py. A line keeps a case's inputs, its outputs, the gradients that
come in, and the gradients of the inputs.
"""
import cases
import lines


def row(case):
    outs, graded, leaves = case.run(case.inputs)
    tensors = {f"in{i}": x for i, x in enumerate(case.inputs) if x is not None}
    tensors |= {f"out{i}": o for i, o in enumerate(outs)}
    tensors |= {f"up{i}": u for i, u in enumerate(case.ups)}
    tensors |= {f"grad{i}": g for i, g in case.gradients(graded, leaves, case.ups).items()}
    return case.row | {"tensors": {name: lines.tensor(t) for name, t in tensors.items()}}


if __name__ == "__main__":
    lines.main("ops", cases.FAMILIES, lambda family: [row(case) for case in cases.of_family(family)])
