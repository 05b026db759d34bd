#!/usr/bin/env python3
"""Golden numbers for optimizers, schedules, layers and the gradient scaler, made with PyTorch.

Usage: python tests/golden/training.py [--check] [FAMILY...]   (needs torch; writes tests/golden/training/FAMILY.jsonl)

Optimizers: two float32 parameters, ten given gradients, the parameters after some steps. Schedules: the rate at each
step. Layers: weights, input, output and gradients of a module. The scaler: its scale and tracker after each step of a
given row of found_inf flags. What is drawn hangs on the line's name alone, as in tests/golden/cases.
"""
import math

import cases
import lines
import torch
import torch.nn as nn


def drawn(name, what, like, low=-2.0, high=2.0):
    """Float32 numbers in the shape of another tensor, for one of a line's tensors."""
    return cases.rand(*like.shape, low=low, high=high).draw(cases.Words(f"{name}: {what}")).float()


def titled(kind, options):
    """What names a line: a kind and its options."""
    return " ".join([kind, *(f"{n}={v}" for n, v in options.items())])


# {==== optimizers ====
OPTIMIZERS = [
    ("SGD", dict(lr=0.1)),
    ("SGD", dict(lr=0.1, momentum=0.9)),
    ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01)),
    ("SGD", dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    ("SGD", dict(lr=0.1, maximize=True)),
    ("Adam", dict(lr=0.01)),
    ("Adam", dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    ("Adam", dict(lr=0.01, maximize=True)),
    ("AdamW", dict(lr=0.01)),
    ("AdamW", dict(lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)),
    ("Lion", dict(lr=0.01)),
    ("Lion", dict(lr=0.01, betas=(0.3, 0.6), weight_decay=0.1)),
    ("Lion", dict(lr=0.01, maximize=True)),
]


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms" (arXiv 2302.06675); PyTorch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False, foreach=False):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (beta1 * m + (1 - beta1) * g).sign()
                m.copy_(beta2 * m + (1 - beta2) * g)
                p.sub_(group["lr"] * (update + group["weight_decay"] * p))


def optimizer(kind, options):
    name, tensors = titled(kind, options), {}
    params = [drawn(name, f"start{i}", p).requires_grad_() for i, p in enumerate([torch.empty(3, 5), torch.empty(70)])]
    for i, p in enumerate(params):
        tensors[f"start{i}"] = p.detach().clone()
    opt = (Lion if kind == "Lion" else getattr(torch.optim, kind))(params, foreach=False, **options)
    for step in range(10):
        for i, p in enumerate(params):
            p.grad = drawn(name, f"grad{i}.{step}", p)
            if step == 4 and i == 1:
                p.grad = None  # untouched: no decay, no step
            else:
                tensors[f"grad{i}.{step}"] = p.grad.clone()
        opt.step()
        if step in (0, 4, 9):
            for i, p in enumerate(params):
                tensors[f"after{i}.{step}"] = p.detach().clone()
    return {"name": name, "kind": kind, "options": options, "tensors": tensors}
# ====}


# {==== schedules ====
L = torch.optim.lr_scheduler



def stable_decay(stable, decay, last, shape):
    """The factor after the warmup of get_wsd_schedule in Hugging Face Transformers (src/transformers/optimization.py),
    with num_stable_steps, num_decay_steps, min_lr_ratio and decay_type; PyTorch has none."""
    def factor(t):
        if t < stable:
            return 1.0
        if t >= stable + decay:
            return last
        progress = (t - stable) / decay
        shapes = {"linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * progress)),
                  "1-sqrt": 1.0 - math.sqrt(progress)}
        return max(0.0, shapes[shape] * (1.0 - last) + last)
    return factor


# kind, options, how many steps, PyTorch's
SCHEDULES = [
    ("Constant", {}, 5, lambda o: L.LambdaLR(o, lambda t: 1)),
    ("Linear", {"steps": 8, "first": 0.25, "last": 1.0}, 12, lambda o: L.LinearLR(o, 0.25, 1.0, 8)),
    ("Cosine", {"steps": 10, "last": 0.1}, 11, lambda o: L.CosineAnnealingLR(o, 10, 0.05)),
    ("Cosine", {"warmup": 4, "steps": 10, "last": 0.1}, 14,
     lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.25, 1.0, 3), L.CosineAnnealingLR(o, 10, 0.05)], [4])),
    ("WarmupStableDecay", {"steps": 10}, 12, lambda o: L.LambdaLR(o, stable_decay(9, 1, 0.0, "linear"))),
    ("WarmupStableDecay", {"steps": 10, "decay_steps": 4}, 12, lambda o: L.LambdaLR(o, stable_decay(6, 4, 0.0, "linear"))),
    ("WarmupStableDecay", {"steps": 10, "decay_steps": 5, "last": 0.1, "shape": "cosine"}, 12,
     lambda o: L.LambdaLR(o, stable_decay(5, 5, 0.1, "cosine"))),
    ("WarmupStableDecay", {"warmup": 4, "steps": 10, "decay_steps": 6, "last": 0.1, "shape": "1-sqrt"}, 16,
     lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.25, 1.0, 3), L.LambdaLR(o, stable_decay(4, 6, 0.1, "1-sqrt"))], [4])),
]


def schedule(kind, options, n, make):
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs, rates = make(opt), []
    for _ in range(n):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        theirs.step()
    return {"name": titled(kind, options), "kind": kind, "options": options, "rates": rates}
# ====}


# {==== layers ====
class SelfAttention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(size, heads, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


# name, PyTorch's, input, what the weights are called here
LAYERS = [
    ("Linear", lambda: nn.Linear(5, 7), cases.rand(4, 5), {}),
    ("Conv2d", lambda: nn.Conv2d(3, 6, 3, padding=1, stride=2), cases.rand(2, 3, 7, 7), {}),
    ("BatchNorm2d", lambda: nn.BatchNorm2d(3), cases.rand(4, 3, 5, 5), {}),
    ("LayerNorm", lambda: nn.LayerNorm(6), cases.rand(4, 6), {}),
    ("RMSNorm", lambda: nn.RMSNorm(6, eps=1e-6), cases.rand(4, 6), {}),
    ("Embedding", lambda: nn.Embedding(9, 4), cases.ints(3, 5, high=9), {}),
    ("MultiheadAttention", lambda: SelfAttention(8, 2), cases.rand(2, 5, 8),
     {"inner.in_proj_weight": "qkv.weight", "inner.in_proj_bias": "qkv.bias", "inner.out_proj.weight": "proj.weight",
      "inner.out_proj.bias": "proj.bias"}),
]


def layer(name, make, x, renamed):
    module = make()
    for n, p in module.named_parameters():
        p.data = drawn(name, n, p, low=-0.5, high=0.5)
    tensors = {f"weight.{renamed.get(n, n)}": p.clone() for n, p in module.state_dict().items()}
    x = x.draw(cases.Words(f"{name}: in0"))
    x = x.float().requires_grad_() if x.is_floating_point() else x
    y = module(x)
    up = drawn(name, "up", y)
    y.backward(up)
    tensors |= {"in0": x, "up": up, "out": y}
    if x.is_floating_point():
        tensors["grad0"] = x.grad
    tensors |= {f"dweight.{renamed.get(n, n)}": p.grad for n, p in module.named_parameters()}
    tensors |= {f"buffer.{n}": b for n, b in module.named_buffers()}
    return {"name": name, "tensors": tensors}
# ====}


# {==== the scaler, by its own kernels ====
SCALERS = [
    (4.0, 2.0, 0.25, 2, [0, 0, 1]),
    (128.0, 2.0, 0.5, 1, [0, 1, 0, 0]),
    (1e38, 16.0, 0.5, 1, [0]),
    (65536.0, 2.0, 0.5, 3, [0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]),
]


def scaler(init, growth, backoff, interval, found):
    scale, tracker, trace = torch.tensor([init]), torch.zeros(1, dtype=torch.int32), []
    for f in found:
        torch._amp_update_scale_(scale, tracker, torch.tensor([float(f)]), growth, backoff, interval)
        trace.append([scale.item(), tracker.item()])
    options = {"init_scale": init, "growth_factor": growth, "backoff_factor": backoff, "growth_interval": interval}
    return {"name": titled("GradScaler", options), "options": options, "found": found, "trace": trace}
# ====}


FAMILIES = {"optimizers": (optimizer, OPTIMIZERS), "schedules": (schedule, SCHEDULES), "layers": (layer, LAYERS),
            "scalers": (scaler, SCALERS)}


def rows(family):
    make, table = FAMILIES[family]
    for given in table:
        row = make(*given)
        yield row | {"tensors": {name: lines.tensor(t) for name, t in row.get("tensors", {}).items()}}


if __name__ == "__main__":
    lines.main("training", list(FAMILIES), rows)
