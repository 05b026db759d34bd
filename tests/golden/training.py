#!/usr/bin/env python3
"""Golden numbers for optimizers, schedules, layers, recurrent layers and the gradient scaler, made with PyTorch.

Usage: python tests/golden/training.py [--check] [FAMILY...]   (needs torch, optimizers also timm 1.0.31, of which
they take LAMB and LARS; writes tests/golden/training/FAMILY.jsonl)

Optimizers: two parameters, twenty given gradients, the parameters after some steps, in float32 and in float64. Schedules:
the rates of all groups at each step, and the momenta of those that cycle them. Layers: weights, input, output and
gradients of a module. The scaler: its scale and tracker after each step of a given row of found_inf flags. Averages:
weights and the averages after each update. Norms: gradients before and after clipping by their norm. What is drawn hangs
on the line's name alone, as in tests/golden/cases.
"""
import math

import cases
import lines
import torch
import torch.nn as nn
import torch.optim.swa_utils


def drawn(name, what, like, low=-2.0, high=2.0):
    """Float32 numbers in the shape of another tensor, for one of a line's tensors."""
    return cases.rand(*like.shape, low=low, high=high).draw(cases.Words(f"{name}: {what}")).float()


def titled(kind, options):
    """What names a line: a kind and its options."""
    return " ".join([kind, *(f"{n}={v}" for n, v in options.items())])


# {==== optimizers ====
DECAY = dict(weight_decay=0.1)
OPTIMIZERS = [
    ("SGD", dict(lr=0.1)),
    ("SGD", dict(lr=0.1, momentum=0.9)),
    ("SGD", dict(lr=0.1, dampening=0.5)),
    ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01)),
    ("SGD", dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    ("SGD", dict(lr=0.1, maximize=True)),
    ("Adam", dict(lr=0.01)),
    ("Adam", dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    ("Adam", dict(lr=0.01, amsgrad=True, betas=(0.8, 0.5), weight_decay=0.1)),
    ("Adam", dict(lr=0.01, maximize=True)),
    ("AdamW", dict(lr=0.01)),
    ("AdamW", dict(lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)),
    ("AdamW", dict(lr=0.01, amsgrad=True, betas=(0.9, 0.5))),
    ("Lion", dict(lr=0.01)),
    ("Lion", dict(lr=0.01, betas=(0.3, 0.6), weight_decay=0.1)),
    ("Lion", dict(lr=0.01, maximize=True)),
    ("RMSprop", dict()),
    ("RMSprop", dict(lr=0.02, alpha=0.9, eps=1e-6, momentum=0.8, **DECAY)),
    ("RMSprop", dict(lr=0.02, alpha=0.9, centered=True, maximize=True)),
    ("RMSprop", dict(lr=0.02, centered=True, momentum=0.5, **DECAY)),
    ("Adagrad", dict(lr=0.1)),
    ("Adagrad", dict(lr=0.1, lr_decay=0.1, initial_accumulator_value=0.5, eps=1e-6, **DECAY)),
    ("Adagrad", dict(lr=0.1, maximize=True)),
    ("Adadelta", dict()),
    ("Adadelta", dict(lr=0.5, rho=0.8, eps=1e-4, **DECAY)),
    ("Adadelta", dict(maximize=True)),
    ("Adamax", dict(lr=0.01)),
    ("Adamax", dict(lr=0.01, betas=(0.8, 0.9), eps=1e-4, **DECAY)),
    ("Adamax", dict(lr=0.01, maximize=True)),
    ("NAdam", dict(lr=0.01)),
    ("NAdam", dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, momentum_decay=0.1, weight_decay=0.03)),
    ("NAdam", dict(lr=0.01, decoupled_weight_decay=True, maximize=True, **DECAY)),
    ("RAdam", dict(lr=0.01)),
    ("RAdam", dict(lr=0.01, betas=(0.8, 0.9), eps=1e-6, **DECAY)),
    ("RAdam", dict(lr=0.01, decoupled_weight_decay=True, maximize=True, **DECAY)),
    ("Rprop", dict()),
    ("Rprop", dict(lr=0.05, etas=(0.4, 1.5), step_sizes=(1e-3, 0.2))),
    ("Rprop", dict(maximize=True)),
    ("ASGD", dict()),
    ("ASGD", dict(lr=0.05, lambd=0.1, alpha=0.5, t0=4, **DECAY)),
    ("ASGD", dict(maximize=True)),
    ("LAMB", dict(lr=0.01)),
    ("LAMB", dict(lr=0.01, betas=(0.8, 0.9), eps=1e-4, weight_decay=0)),
    ("LAMB", dict(lr=0.01, weight_decay=0, use_nvlamb=True, maximize=True)),
    ("LARS", dict(lr=0.5, **DECAY)),
    ("LARS", dict(lr=0.5, momentum=0.9, nesterov=True, trust_coefficient=0.05, weight_decay=0.01)),
    ("LARS", dict(lr=0.5, momentum=0.9, dampening=0.3, trust_coefficient=0.05, eps=0.1, maximize=True, **DECAY)),
    ("LARS", dict(lr=0.1, momentum=0.9)),
    ("Muon", dict(lr=0.02)),
    ("Muon", dict(lr=0.02, momentum=0.8, nesterov=False, weight_decay=0, adjust_lr_fn="match_rms_adamw")),
    ("Muon", dict(lr=0.02, ns_coefficients=(3, -3.2, 1.2), ns_steps=3, eps=1e-3, adjust_lr_fn="spectral_unclamped")),
    ("Adafactor", dict()),
    ("Adafactor", dict(lr=0.1, beta2_decay=-0.5, eps=(1e-2, 0.5), d=1.5, weight_decay=0.1)),
    ("Adafactor", dict(lr=1.0, maximize=True, d=4.0)),
]
STEPS = 20


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms" (arXiv 2302.06675); PyTorch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
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


def timms(name):
    """An optimizer class of timm's; nothing else here needs it."""
    import timm.optim

    return getattr(timm.optim, name)


class FromTimm(torch.optim.Optimizer):
    """An optimizer of timm's, one per parameter: timm counts the steps of a group, also those that a parameter without a
    gradient does not take."""

    def __init__(self, make, params, maximize):
        super().__init__(params, dict(maximize=maximize))
        self.each = [(p, make([p])) for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self):
        for p, theirs in self.each:
            if p.grad is None:
                continue
            given = p.grad
            p.grad = -given if self.param_groups[0]["maximize"] else given
            theirs.step()
            p.grad = given


def LAMB(params, lr=1e-3, use_nvlamb=False, maximize=False, **options):
    """You et al. 2020 (arXiv 1904.00962) by timm (timm/optim/lamb.py, which follows NVIDIA's FusedLAMB), without its clip by
    the global norm; PyTorch has none."""
    make = lambda p: timms("Lamb")(p, lr=lr, max_grad_norm=None, always_adapt=use_nvlamb, foreach=False, **options)
    return FromTimm(make, params, maximize)


def LARS(params, lr=1e-3, trust_coefficient=0.001, maximize=False, **options):
    """You, Gitman, Ginsburg 2017 (arXiv 1708.03888) by timm (timm/optim/lars.py); PyTorch has none."""
    make = lambda p: timms("Lars")(p, lr=lr, trust_coeff=trust_coefficient, foreach=False, **options)
    return FromTimm(make, params, maximize)


class ExactMuon(torch.optim.Optimizer):
    """torch.optim.Muon with its products in the dtype of the parameter, where PyTorch rounds to bfloat16."""

    def __init__(self, params, **options):
        self.theirs = torch.optim.Muon([torch.nn.Parameter(torch.zeros(1, 1))], **options)
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        o = self.theirs.param_groups[0]
        a, b, c = o["ns_coefficients"]
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
            buffer.lerp_(p.grad, 1 - o["momentum"])
            x = p.grad.lerp(buffer, o["momentum"]) if o["nesterov"] else buffer
            x = x.T if p.size(0) > p.size(1) else x
            x = x / x.norm().clamp(min=o["eps"])
            for _ in range(o["ns_steps"]):
                s = x @ x.T
                x = a * x + (b * s + c * s @ s) @ x
            x = x.T if p.size(0) > p.size(1) else x
            p.mul_(1 - o["lr"] * o["weight_decay"])
            p.add_(x, alpha=-torch.optim._muon._adjust_lr(o["lr"], o["adjust_lr_fn"], p.shape))


OWN = {"Lion": Lion, "LAMB": LAMB, "LARS": LARS, "Muon": torch.optim.Muon}
SHAPES = {"Muon": [(3, 5), (10, 7)], "Adafactor": [(2, 3, 5), (70,)]}


def optimizer(kind, options):
    """Twenty steps, the short parameter without a gradient at the fifth. "wide": the end of the same in float64."""
    name, tensors = titled(kind, options), {}
    for dtype in (torch.float32, torch.float64):
        wide = dtype == torch.float64
        torch.set_default_dtype(dtype)  # of the numbers that NAdam and ASGD keep
        shapes = SHAPES.get(kind, [(3, 5), (70,)])
        start = [drawn(name, f"start{i}", torch.empty(shape)) for i, shape in enumerate(shapes)]
        params = [p.to(dtype).requires_grad_() for p in start]
        for i, p in enumerate(params):
            tensors.setdefault(f"start{i}", p.detach().clone())
        given = options if kind in OWN else options | {"foreach": False}
        make = ExactMuon if kind == "Muon" and wide else OWN.get(kind) or getattr(torch.optim, kind)
        opt = make(params, **given)
        for step in range(STEPS):
            for i, p in enumerate(params):
                g = drawn(name, f"grad{i}.{step}", p)
                p.grad = None if step == 4 and i == 1 else g.to(dtype)  # untouched: no decay, no step
                if p.grad is not None:
                    tensors[f"grad{i}.{step}"] = g
            opt.step()
            if step in ((STEPS - 1,) if wide else (0, 4, STEPS - 1)):
                for i, p in enumerate(params):
                    tensors[f"wide{i}.{step}" if wide else f"after{i}.{step}"] = p.detach().clone()
    torch.set_default_dtype(torch.float32)
    return {"name": name, "kind": kind, "options": options, "tensors": tensors}
# ====}


# {==== schedules ====
L = torch.optim.lr_scheduler
SWALR = torch.optim.swa_utils.SWALR


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


def inverse_sqrt(timescale):
    """The factor after the warmup of get_inverse_sqrt_schedule in Hugging Face Transformers, whose shift is then the
    timescale less the warmup; PyTorch has none."""
    return lambda t: 1.0 / math.sqrt((t + timescale) / timescale)


# Functions of a recipe, which the test has in Lua: for each group of Lambda and Multiplicative, and the scale of Cyclic.
LAMBDAS = [lambda t: 0.95 ** t, lambda t: 1 / (1 + t)]
FACTORS = [lambda t: 0.95, lambda t: 1 - 1 / (t + 2)]


def scale(x):
    return 0.5 * (1 + math.sin(x * math.pi / 2))


# A metric that falls, stays, falls and rises again.
METRICS = [round(m, 6) for m in [2.0 * 0.8 ** min(t, 8) + 0.01 * (t % 3) for t in range(24)] + [0.2, 0.1999, 0.19] + [0.3 + 0.1 * t for t in range(21)]]
RISING = [round(1 - m / 4, 6) for m in METRICS]
ONE = {"max_lr": [0.8, 0.3], "total_steps": 40}
CYCLE = {"base_lr": [0.1, 0.01], "max_lr": [0.8, 0.3], "step_size_up": 7}
PARTS = {"schedules": [["Constant", {"factor": 0.1, "total_iters": 100}], ["Exponential", {"gamma": 0.9}], ["Step", {"step_size": 3, "gamma": 0.5}]],
         "milestones": [6, 21]}
CHAIN = {"schedules": [["Constant", {"factor": 0.1, "total_iters": 20}], ["Exponential", {"gamma": 0.9}]]}


def parts(o):
    return [L.ConstantLR(o, 0.1, 100), L.ExponentialLR(o, 0.9), L.StepLR(o, 3, 0.5)]


# kind, options, how many steps, PyTorch's; and where they differ the groups' rates, the optimizer and what step is given
SCHEDULES = [
    ("Constant", {}, 5, lambda o: L.LambdaLR(o, lambda t: 1)),
    ("Linear", {"steps": 8, "first": 0.25, "last": 1.0}, 12, lambda o: L.LinearLR(o, 0.25, 1.0, 8)),
    ("Cosine", {"steps": 10, "last": 0.1}, 11, lambda o: L.CosineAnnealingLR(o, 10, 0.05), [0.5]),
    ("Cosine", {"warmup": 4, "steps": 10, "last": 0.1}, 14,
     lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.25, 1.0, 3), L.CosineAnnealingLR(o, 10, 0.05)], [4]), [0.5]),
    ("WarmupStableDecay", {"steps": 10}, 12, lambda o: L.LambdaLR(o, stable_decay(9, 1, 0.0, "linear"))),
    ("WarmupStableDecay", {"steps": 10, "decay_steps": 4}, 12, lambda o: L.LambdaLR(o, stable_decay(6, 4, 0.0, "linear"))),
    ("WarmupStableDecay", {"steps": 10, "decay_steps": 5, "last": 0.1, "shape": "cosine"}, 12,
     lambda o: L.LambdaLR(o, stable_decay(5, 5, 0.1, "cosine"))),
    ("WarmupStableDecay", {"warmup": 4, "steps": 10, "decay_steps": 6, "last": 0.1, "shape": "1-sqrt"}, 16,
     lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.25, 1.0, 3), L.LambdaLR(o, stable_decay(4, 6, 0.1, "1-sqrt"))], [4])),
    ("Constant", {"factor": 0.25, "total_iters": 9}, 32, lambda o: L.ConstantLR(o, 0.25, 9)),
    ("Constant", {"factor": 0.25, "total_iters": 9, "last_epoch": 3}, 32, lambda o: L.ConstantLR(o, 0.25, 9), None, None, [None] * 4),
    ("Step", {"step_size": 7}, 36, lambda o: L.StepLR(o, 7)),
    ("Step", {"step_size": 4, "gamma": 0.7}, 36, lambda o: L.StepLR(o, 4, 0.7)),
    ("Step", {"warmup": 4, "step_size": 5, "gamma": 0.5}, 36,
     lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.25, 1.0, 3), L.StepLR(o, 5, 0.5)], [4])),
    ("MultiStep", {"milestones": [3, 11, 12, 30]}, 36, lambda o: L.MultiStepLR(o, [3, 11, 12, 30])),
    ("MultiStep", {"milestones": [1, 20], "gamma": 0.5}, 36, lambda o: L.MultiStepLR(o, [1, 20], 0.5)),
    ("Exponential", {"gamma": 0.9}, 36, lambda o: L.ExponentialLR(o, 0.9)),
    ("Exponential", {"gamma": 0.9, "last_epoch": 5}, 36, lambda o: L.ExponentialLR(o, 0.9), None, None, [None] * 6),
    ("Polynomial", {}, 36, lambda o: L.PolynomialLR(o)),
    ("Polynomial", {"total_iters": 30, "power": 2.0}, 36, lambda o: L.PolynomialLR(o, 30, 2.0)),
    ("InverseSqrt", {}, 36, lambda o: L.LambdaLR(o, inverse_sqrt(10000))),
    ("InverseSqrt", {"warmup": 8}, 36, lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.125, 1.0, 7), L.LambdaLR(o, inverse_sqrt(8))], [8])),
    ("InverseSqrt", {"timescale": 5}, 36, lambda o: L.LambdaLR(o, inverse_sqrt(5))),
    ("CosineWarmRestarts", {"T_0": 8}, 36, lambda o: L.CosineAnnealingWarmRestarts(o, 8)),
    ("CosineWarmRestarts", {"T_0": 3, "T_mult": 2, "eta_min": 0.01}, 50, lambda o: L.CosineAnnealingWarmRestarts(o, 3, 2, 0.01)),
    ("Lambda", {"fn": "LAMBDAS"}, 36, lambda o: L.LambdaLR(o, LAMBDAS)),
    ("Multiplicative", {"fn": "FACTORS"}, 36, lambda o: L.MultiplicativeLR(o, FACTORS)),
    ("OneCycle", ONE, 40, lambda o: L.OneCycleLR(o, [0.8, 0.3], 40)),
    ("OneCycle", {"max_lr": 0.8, "epochs": 4, "steps_per_epoch": 10, "pct_start": 0.45, "anneal_strategy": "linear", "base_momentum": [0.7, 0.8],
                  "max_momentum": 0.99, "div_factor": 10, "final_div_factor": 100}, 40,
     lambda o: L.OneCycleLR(o, 0.8, epochs=4, steps_per_epoch=10, pct_start=0.45, anneal_strategy="linear", base_momentum=[0.7, 0.8],
                            max_momentum=0.99, div_factor=10, final_div_factor=100), None, "Adam"),
    ("OneCycle", ONE | {"three_phase": True}, 40, lambda o: L.OneCycleLR(o, [0.8, 0.3], 40, three_phase=True)),
    ("OneCycle", ONE | {"cycle_momentum": False}, 40, lambda o: L.OneCycleLR(o, [0.8, 0.3], 40, cycle_momentum=False)),
    ("Cyclic", CYCLE, 40, lambda o: L.CyclicLR(o, [0.1, 0.01], [0.8, 0.3], 7)),
    ("Cyclic", CYCLE | {"step_size_down": 3, "mode": "triangular2", "base_momentum": [0.6, 0.7], "max_momentum": 0.95}, 40,
     lambda o: L.CyclicLR(o, [0.1, 0.01], [0.8, 0.3], 7, 3, "triangular2", base_momentum=[0.6, 0.7], max_momentum=0.95), None, "AdamW"),
    ("Cyclic", CYCLE | {"mode": "exp_range", "gamma": 0.97}, 40, lambda o: L.CyclicLR(o, [0.1, 0.01], [0.8, 0.3], 7, mode="exp_range", gamma=0.97)),
    ("Cyclic", CYCLE | {"scale_fn": "scale", "scale_mode": "iterations", "cycle_momentum": False}, 40,
     lambda o: L.CyclicLR(o, [0.1, 0.01], [0.8, 0.3], 7, scale_fn=scale, scale_mode="iterations", cycle_momentum=False)),
    ("ReduceOnPlateau", {"patience": 2}, 48, lambda o: L.ReduceLROnPlateau(o, patience=2), None, None, METRICS),
    ("ReduceOnPlateau", {"mode": "max", "factor": 0.5, "patience": 1, "threshold": 0.02, "threshold_mode": "abs", "cooldown": 3, "min_lr": [0.1, 0.01],
                         "eps": 0.03}, 48,
     lambda o: L.ReduceLROnPlateau(o, "max", 0.5, 1, 0.02, "abs", 3, [0.1, 0.01], 0.03), None, None, RISING),
    ("ReduceOnPlateau", {"mode": "max", "factor": 0.5, "patience": 0, "threshold": 0.05}, 48,
     lambda o: L.ReduceLROnPlateau(o, "max", 0.5, 0, 0.05), None, None, RISING),
    ("ReduceOnPlateau", {"threshold_mode": "abs", "threshold": 0.1, "factor": 0.7, "patience": 3, "cooldown": 1}, 48,
     lambda o: L.ReduceLROnPlateau(o, "min", 0.7, 3, 0.1, "abs", 1), None, None, METRICS),
    ("SWA", {"swa_lr": [0.05, 0.4], "anneal_epochs": 20}, 32, lambda o: SWALR(o, [0.05, 0.4], 20)),
    ("SWA", {"swa_lr": 0.05, "anneal_strategy": "linear"}, 32, lambda o: SWALR(o, 0.05, anneal_strategy="linear")),
    ("Sequential", PARTS, 36, lambda o: L.SequentialLR(o, parts(o), [6, 21])),
    ("Chained", CHAIN, 36, lambda o: L.ChainedScheduler([L.ConstantLR(o, 0.1, 20), L.ExponentialLR(o, 0.9)])),
]


def schedule(kind, options, n, make, lrs=None, optimizer=None, given=None):
    """given: what PyTorch's step gets, for each step; where it is None, the first steps are not part of the trace."""
    lrs, optimizer, given = lrs or [0.5, 0.2], optimizer or "SGD", given or []
    more = {"momentum": 0.95} if optimizer == "SGD" else {}
    opt = getattr(torch.optim, optimizer)([{"params": [nn.Parameter(torch.zeros(1))], "lr": r} for r in lrs], **more)
    theirs, rates, momenta = make(opt), [], []
    before = given.count(None)
    for t in range(before + n):
        if t >= before:
            rates.append([g["lr"] for g in opt.param_groups])
            momenta.append([g["betas"][0] if "betas" in g else g["momentum"] for g in opt.param_groups])
        opt.step()
        if t + 1 < before + n:
            theirs.step(*(given[t:t + 1] if not before else []))
    return {"name": titled(kind, options), "kind": kind, "options": options, "lrs": lrs, "optimizer": optimizer, "metrics": given if not before else [],
            "rates": rates, "momenta": momenta if kind in ("OneCycle", "Cyclic") else []}
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


# {==== averages of weights ====
AVERAGES = [
    ("swa", {}),
    ("ema", {"decay": 0.9}),
    ("ema", {}),
    ("fn", {}),
    ("swa", {"use_buffers": True}),
    ("ema", {"decay": 0.6, "use_buffers": True}),
]


def average(mode, options):
    """A batch norm whose weights and statistics change, and what AveragedModel has after each of five updates; then
    what update_bn makes of its statistics."""
    name, tensors, swa = titled(mode, options), {}, torch.optim.swa_utils
    model = nn.BatchNorm1d(4)
    fns = {"swa": {"avg_fn": swa.get_swa_avg_fn()}, "ema": {"avg_fn": swa.get_ema_avg_fn(options.get("decay", 0.999))},
           "fn": {"avg_fn": lambda a, p, n: 0.75 * a + 0.25 * p * n}}
    averaged = swa.AveragedModel(model, **fns[mode], use_buffers=options.get("use_buffers", False))
    for step in range(5):
        for n, p in [*model.named_parameters(), *model.named_buffers()]:
            p.data = drawn(name, f"{n}.{step}", p) if p.is_floating_point() else torch.tensor(3 * step)
            tensors[f"model.{n}.{step}"] = p.detach().clone()
        averaged.update_parameters(model)
        for n, p in [*averaged.module.named_parameters(), *averaged.module.named_buffers()]:
            if options.get("use_buffers") or n in ("weight", "bias"):
                tensors[f"average.{n}.{step}"] = p.detach().clone()
    batches = [drawn(name, f"batch{i}", torch.empty(6, 4)) for i in range(3)]
    swa.update_bn(batches, averaged)
    tensors |= {f"batch{i}": b for i, b in enumerate(batches)}
    tensors |= {f"after.{n}": b.clone() for n, b in averaged.module.named_buffers()}
    return {"name": name, "mode": mode, "options": options, "tensors": tensors}
# ====}


# {==== norms of all gradients ====
NORMS = [(2.0, 1.0), (1.0, 5.0), (3.0, 0.5), ("inf", 1.5), (2.0, 100.0)]


def norm(kind, most):
    name = f"norm_type={kind} max_norm={most}"
    params = [nn.Parameter(torch.zeros(shape)) for shape in [(3, 5), (7,), ()]]
    tensors = {}
    for i, p in enumerate(params):
        p.grad = drawn(name, f"grad{i}", p)
        tensors[f"grad{i}"] = p.grad.clone()
    tensors["vector"] = nn.utils.parameters_to_vector([p.grad for p in params])
    total = nn.utils.get_total_norm([p.grad for p in params], float(kind))
    nn.utils.clip_grads_with_norm_(params, most, total)
    tensors |= {"total": total} | {f"clipped{i}": p.grad for i, p in enumerate(params)}
    return {"name": name, "norm_type": kind, "max_norm": most, "tensors": tensors}
# ====}


# {==== recurrent layers ====
RECURRENT = [
    ("RNN", {}),
    ("RNN", dict(nonlinearity="relu", bidirectional=True, lengths=[2, 5, 3])),
    ("LSTM", {}),
    ("LSTM", dict(num_layers=2, bidirectional=True, batch_first=True)),
    ("LSTM", dict(num_layers=2, bidirectional=True, proj_size=2, lengths=[5, 1, 4])),
    ("LSTM", dict(bias=False, proj_size=3)),
    ("GRU", {}),
    ("GRU", dict(num_layers=2, bidirectional=True, batch_first=True, lengths=[3, 5, 1])),
    ("RNNCell", {}),
    ("LSTMCell", {}),
    ("GRUCell", dict(bias=False)),
]


def recurrent_run(module, x, state, lengths, ups, scope):
    """Results (the output, if any, then the states), and the gradients of x, the states and the weights."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, *state)]
    h = tuple(leaves[1:]) if len(state) > 1 else leaves[1]
    module.zero_grad()
    with torch.autocast("cpu", dtype=scope or torch.bfloat16, enabled=scope is not None):
        if isinstance(module, nn.RNNBase):
            packed = leaves[0]
            if lengths:
                packed = nn.utils.rnn.pack_padded_sequence(packed, lengths, module.batch_first, enforce_sorted=False)
            y, h = module(packed, h)
            if lengths:
                y = nn.utils.rnn.pad_packed_sequence(y, module.batch_first)[0]
            results = [y, *(h if isinstance(h, tuple) else [h])]
        else:
            h = module(leaves[0], h)
            results = [*h] if isinstance(h, tuple) else [h]
    ups = ups(results)
    sum((r.to(x.dtype) * u).sum() for r, u in zip(results, ups)).backward()
    graded = {"dx": leaves[0].grad, **{f"dstate{i}": t.grad for i, t in enumerate(leaves[1:])}}
    graded |= {f"dweight.{n}": p.grad for n, p in module.named_parameters()}
    return {f"out{i}": r for i, r in enumerate(results)} | graded, ups


def recurrent(kind, options):
    """Results and gradients in float64, and how far PyTorch's autocast is from each: the L2 norm of the difference by
    that of the tensor."""
    name = titled(kind, options)
    lengths = options.get("lengths")
    given = {n: v for n, v in options.items() if n != "lengths"}
    module = getattr(nn, kind)(4, 5, **given).double()
    for n, p in module.named_parameters():
        p.data = drawn(name, n, p, low=-0.5, high=0.5).double()
    cell = kind.endswith("Cell")
    shape = (3, 4) if cell else (3, 5, 4) if options.get("batch_first") else (5, 3, 4)
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    sizes = [options.get("proj_size") or 5, 5][: 2 if "LSTM" in kind else 1]
    x = drawn(name, "x", torch.empty(shape)).double()
    state = [drawn(name, f"state{i}", torch.empty(3, n) if cell else torch.empty(count, 3, n)).double()
             for i, n in enumerate(sizes)]
    tensors = {"x": x} | {f"state{i}": t for i, t in enumerate(state)}
    tensors |= {f"weight.{n}": p.detach().clone() for n, p in module.named_parameters()}
    made, ups = recurrent_run(module, x, state, lengths,
                              lambda results: [drawn(name, f"up{i}", r).double() for i, r in enumerate(results)], None)
    made = {n: t.detach().clone() for n, t in made.items()}
    tensors |= made | {f"up{i}": u for i, u in enumerate(ups)}
    module.float()
    errors = {}
    for scope in torch.bfloat16, torch.float16:
        low, _ = recurrent_run(module, x.float(), [t.float() for t in state], lengths, lambda _: ups, scope)
        errors[str(scope)[6:]] = {n: round(((t.double() - made[n]).norm() / made[n].norm()).item(), 6)
                                  for n, t in low.items()}
    return {"name": name, "kind": kind, "options": options, "errors": errors, "tensors": tensors}
# ====}


# {==== transformers ====
def hidden(t, s):
    """A bool mask that hides what comes later."""
    return torch.ones(t, s, dtype=torch.bool).triu(1)


def padded(batch, s):
    """A bool mask that hides the last element of every second sequence."""
    mask = torch.zeros(batch, s, dtype=torch.bool)
    mask[1::2, -1] = True
    return mask


encoder_layer = dict(d_model=6, nhead=2, dim_feedforward=8, dropout=0)
# kind, options, shapes of what goes in, masks by name
TRANSFORMERS = [
    ("TransformerEncoderLayer", encoder_layer, [(5, 2, 6)], {}),
    ("TransformerEncoderLayer", encoder_layer | dict(norm_first=True, activation="gelu", batch_first=True),
     [(2, 5, 6)], dict(src_mask=hidden(5, 5), src_key_padding_mask=padded(2, 5))),
    ("TransformerEncoderLayer", encoder_layer | dict(bias=False), [(5, 6)], dict(src_mask="float")),
    ("TransformerDecoderLayer", encoder_layer, [(5, 2, 6), (4, 2, 6)],
     dict(tgt_mask=hidden(5, 5), memory_key_padding_mask=padded(2, 4))),
    ("TransformerDecoderLayer", encoder_layer | dict(norm_first=True, batch_first=True), [(2, 5, 6), (2, 4, 6)], {}),
    ("Transformer", encoder_layer | dict(num_encoder_layers=2, num_decoder_layers=1), [(4, 2, 6), (5, 2, 6)],
     dict(tgt_mask=hidden(5, 5), src_key_padding_mask=padded(2, 4), memory_key_padding_mask=padded(2, 4))),
]


def transformer(kind, options, shapes, masks):
    name = titled(kind, {n: v for n, v in options.items() if encoder_layer.get(n) != v})
    module = getattr(nn, kind)(**options).double()
    for n, p in module.named_parameters():
        p.data = drawn(name, n, p, low=-0.5, high=0.5).double()
    masks = {n: drawn(name, n, torch.empty(5, 5)).double() if isinstance(m, str) else m for n, m in masks.items()}
    inputs = [drawn(name, f"in{i}", torch.empty(s)).double().requires_grad_() for i, s in enumerate(shapes)]
    y = module(*inputs, **masks)
    up = drawn(name, "up", y).double()
    y.backward(up)
    tensors = {f"in{i}": x for i, x in enumerate(inputs)} | {f"mask.{n}": m for n, m in masks.items()}
    tensors |= {f"weight.{n}": p for n, p in module.named_parameters()} | {"up": up, "out": y}
    tensors |= {f"grad{i}": x.grad for i, x in enumerate(inputs)}
    tensors |= {f"dweight.{n}": p.grad for n, p in module.named_parameters()}
    return {"name": name, "kind": kind, "options": options, "tensors": tensors}
# ====}


FAMILIES = {"transformers": (transformer, TRANSFORMERS), "recurrent": (recurrent, RECURRENT), "optimizers": (optimizer, OPTIMIZERS), "schedules": (schedule, SCHEDULES), "layers": (layer, LAYERS),
            "scalers": (scaler, SCALERS), "averages": (average, AVERAGES), "norms": (norm, NORMS)}


def rows(family):
    make, table = FAMILIES[family]
    for given in table:
        row = make(*given)
        yield row | {"tensors": {name: lines.tensor(t) for name, t in row.get("tensors", {}).items()}}


if __name__ == "__main__":
    lines.main("training", list(FAMILIES), rows)
