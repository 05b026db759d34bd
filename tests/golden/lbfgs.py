#!/usr/bin/env python3
"""Steps of torch.optim.LBFGS for tests/lua/test_lbfgs.lua.

Usage: python tests/golden/lbfgs.py          (needs torch; writes tests/golden/lbfgs.lua)

Rosenbrock's function of three variables, in float64: the loss that each step returns, where it ends, and how many
iterations and evaluations there were.
"""
import os

import torch

CASES = [
    {"lr": 0.1}, {"lr": 1, "line_search_fn": "strong_wolfe"},
    {"lr": 1, "line_search_fn": "strong_wolfe", "history_size": 2, "max_iter": 7},
    {"lr": 0.5, "line_search_fn": "strong_wolfe", "max_eval": 9}, {"lr": 0.05, "history_size": 3, "maximize": True},
]


def text(value):
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)


def row(options):
    x = torch.tensor([-1.2, 1.0, 0.5], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([x], **options)
    sign = -1 if options.get("maximize") else 1

    def closure():
        optimizer.zero_grad()
        a, b, c = x
        loss = sign * ((b - a * a) ** 2 * 100 + (1 - a) ** 2 + (c - b * b) ** 2 * 100 + (1 - b) ** 2)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(4)]
    state = optimizer.state[x]
    return (f"  {{ options = {{ {', '.join(f'{k} = {text(v)}' for k, v in options.items())} }},\n"
            f"    losses = {{ {', '.join(map(repr, losses))} }},\n"
            f"    x = {{ {', '.join(map(repr, x.tolist()))} }}, iterations = {state['n_iter']}, "
            f"evaluations = {state['func_evals']} }},\n")


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lbfgs.lua"), "w") as f:
    f.write("-- Made by tests/golden/lbfgs.py.\nreturn {\n" + "".join(row(options) for options in CASES) + "}\n")
