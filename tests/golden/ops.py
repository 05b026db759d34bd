#!/usr/bin/env python3
"""Golden numbers for every op, made with PyTorch in float64.

Usage: python tests/golden/ops.py            (needs torch and safetensors; writes tests/golden/ops.safetensors)

Inputs are multiples of 1/16 below 4 in magnitude, so every floating dtype holds them exactly and one float64 reference serves all. A case
keeps its inputs, its outputs, the gradients that come in, and the gradients of the inputs. Arguments are written as Lua takes them:
dimensions count from 1, integers in tensors from 0. The Lua tests read the cases and need no Python.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(7)
cases, tensors = [], {}
calls = []  # (inputs, fn, incoming gradients) of each case, for special.py


def rand(*shape, low=-2.0, high=2.0, away=None):
    """Multiples of 1/16 in [low, high]; `away` keeps them that far from 0, where an op has a kink."""
    x = torch.randint(int(low * 16), int(high * 16) + 1, shape).double() / 16
    if away:
        x = torch.where(x.abs() < away, torch.full_like(x, away), x)
    return x


def distinct(*shape):
    """No two elements equal, none 0: for max, sort, pooling."""
    n = 1
    for s in shape:
        n *= s
    return ((torch.randperm(n).double() - n // 2) * 2 + 1).reshape(shape) / 16


def ints(*shape, high):
    return torch.randint(0, high, shape)


class T:
    """Stands for input k in a case's arguments."""

    def __init__(self, k):
        self.k = k


def encode(a):
    if isinstance(a, T):
        return {"in": a.k}
    if a is None:
        return {"nil": True}
    if isinstance(a, list):
        return [encode(x) for x in a]
    if isinstance(a, dict):
        return {"options": a}
    return a


def case(op, inputs, args, fn, grad=None, growth=4, tag=""):
    """op(args) against fn(*inputs). grad: positions of inputs to differentiate (default: every floating one; []: none)."""
    if grad is None:
        grad = [i for i, x in enumerate(inputs) if x is not None and x.is_floating_point()]
    leaves = [None if x is None else x.clone().requires_grad_(i in grad) for i, x in enumerate(inputs)]
    outs = fn(*leaves)
    outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
    k = len(cases)
    calls.append((inputs, fn, []))
    for i, x in enumerate(inputs):
        if x is not None:
            tensors[f"{k}.in{i}"] = x.contiguous().clone()
    floating = [o for o in outs if o.is_floating_point() and o.requires_grad]
    ups = [rand(*o.shape, away=0.25) for o in floating]
    for i, o in enumerate(outs):
        tensors[f"{k}.out{i}"] = o.detach().contiguous().clone()
    if grad and floating:
        calls[k][2].extend(ups)
        for i, u in enumerate(ups):
            tensors[f"{k}.up{i}"] = u.contiguous().clone()
        gs = torch.autograd.grad(floating, [leaves[i] for i in grad], ups, allow_unused=True)
        for i, g in zip(grad, gs):
            tensors[f"{k}.grad{i}"] = (torch.zeros_like(inputs[i]) if g is None else g).contiguous().clone()
    cases.append({"op": op, "args": [encode(a) for a in args], "inputs": len(inputs), "outputs": len(outs), "grad": grad if floating else [],
                  "growth": growth, "tag": tag})


x0, x1, x2 = T(0), T(1), T(2)

# {==== elementwise ====
for name, f in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div)]:
    case(name, [rand(3, 4), rand(3, 4, away=0.5)], [x0, x1], f)
    case(name, [rand(2, 1, 4), rand(3, 1, away=0.5)], [x0, x1], f, tag="broadcast")
    case(name, [rand(3, 4)], [x0, 1.5], lambda x, f=f: f(x, 1.5), tag="number")
    case(name, [rand(1), rand(1, 1, away=0.5)], [x0, x1], f, tag="size one")
    case(name, [rand(0, 4), rand(4, away=0.5)], [x0, x1], f, tag="empty")
case("div", [ints(4, high=9), ints(4, high=5) + 1], [x0, x1], lambda a, b: (a / b).float(), grad=[], tag="integers")
case("sub", [rand(3)], [2.0, x0], lambda x: 2.0 - x, tag="number first")
case("floor_divide", [rand(5), rand(5, away=0.5)], [x0, x1], torch.floor_divide, grad=[])
case("floor_divide", [ints(6, high=9) - 4, ints(6, high=3) + 1], [x0, x1], torch.floor_divide, grad=[], tag="integers")
case("remainder", [rand(6), rand(6, away=0.5)], [x0, x1], torch.remainder, grad=[0])
case("pow", [rand(3, 4, low=0.5, high=3), rand(4)], [x0, x1], torch.pow)
case("pow", [rand(3, 4, away=0.5)], [x0, 3], lambda x: x**3, tag="number")
case("pow", [rand(3, low=0.5)], [2.0, x0], lambda x: 2.0**x, tag="base number")
a, b = distinct(4, 5), distinct(4, 5) + 1 / 32
case("maximum", [a, b.flip(0)], [x0, x1], torch.maximum)
case("minimum", [a, b.flip(1)], [x0, x1], torch.minimum)
case("atan2", [rand(3, 4, away=0.25), rand(4, away=0.25)], [x0, x1], torch.atan2)
for name, f, low, high in [
    ("neg", torch.neg, -2, 2), ("abs", torch.abs, -2, 2), ("exp", torch.exp, -2, 2), ("expm1", torch.expm1, -2, 2),
    ("log", torch.log, 0.25, 3), ("log2", torch.log2, 0.25, 3), ("log10", torch.log10, 0.25, 3), ("log1p", torch.log1p, -0.5, 3),
    ("sqrt", torch.sqrt, 0.25, 3), ("rsqrt", torch.rsqrt, 0.25, 3), ("square", torch.square, -2, 2), ("reciprocal", torch.reciprocal, 0.5, 3),
    ("sin", torch.sin, -2, 2), ("cos", torch.cos, -2, 2), ("tan", torch.tan, -1, 1), ("tanh", torch.tanh, -2, 2), ("erf", torch.erf, -2, 2),
    ("sigmoid", torch.sigmoid, -2, 2), ("relu", torch.relu, -2, 2), ("silu", F.silu, -2, 2), ("softplus", F.softplus, -2, 2),
    ("elu", F.elu, -2, 2), ("leaky_relu", F.leaky_relu, -2, 2), ("gelu", F.gelu, -2, 2),
]:
    case(name, [rand(3, 5, low=low, high=high, away=0.25 if low < 0 else None)], [x0], f)
    case(name, [rand(0, low=low, high=high)], [x0], f, tag="empty")
    case(name, [rand(1, 1, low=low, high=high, away=0.25 if low < 0 else None)], [x0], f, tag="size one")
for name, f in [("sign", torch.sign), ("floor", torch.floor), ("ceil", torch.ceil), ("round", torch.round), ("trunc", torch.trunc)]:
    case(name, [rand(4, 5)], [x0], f, grad=[])
case("gelu", [rand(3, 5)], [x0, {"approximate": "tanh"}], lambda x: F.gelu(x, approximate="tanh"))
case("leaky_relu", [rand(3, 5, away=0.25)], [x0, 0.25], lambda x: F.leaky_relu(x, 0.25))
case("elu", [rand(3, 5, away=0.25)], [x0, 0.5], lambda x: F.elu(x, 0.5))
case("softplus", [rand(3, 5)], [x0, {"beta": 2.0}], lambda x: F.softplus(x, 2.0))
case("clamp", [rand(4, 5, away=0.25)], [x0, -1.03125, 1.03125], lambda x: x.clamp(-1.03125, 1.03125))
case("lerp", [rand(3, 4), rand(3, 4)], [x0, x1, 0.25], lambda x, y: torch.lerp(x, y, 0.25))
case("lerp", [rand(3, 4), rand(3, 4), rand(4)], [x0, x1, x2], torch.lerp, tag="tensor")
case("addcmul", [rand(3, 4), rand(4), rand(3, 1)], [x0, x1, x2, {"value": 0.5}], lambda x, y, z: torch.addcmul(x, y, z, value=0.5))
case("addcdiv", [rand(3, 4), rand(4), rand(3, 1, away=0.5)], [x0, x1, x2, {"value": 0.5}], lambda x, y, z: torch.addcdiv(x, y, z, value=0.5))
m = torch.rand(3, 4) > 0.5
case("where", [m, rand(3, 4), rand(4)], [x0, x1, x2], torch.where)
case("where", [m, rand(3, 4)], [x0, x1, 0.5], lambda c, x: torch.where(c, x, 0.5), tag="number")
case("masked_fill", [rand(3, 4), m], [x0, x1, -1.5], lambda x, k: x.masked_fill(k, -1.5))
for name, f in [("eq", torch.eq), ("ne", torch.ne), ("lt", torch.lt), ("le", torch.le), ("gt", torch.gt), ("ge", torch.ge)]:
    case(name, [rand(4, 5, low=-0.25, high=0.25), rand(5, low=-0.25, high=0.25)], [x0, x1], f, grad=[])
p, q = torch.rand(5) > 0.5, torch.rand(5) > 0.5
for name, f in [("logical_and", torch.logical_and), ("logical_or", torch.logical_or), ("logical_xor", torch.logical_xor),
                ("bitwise_and", torch.bitwise_and), ("bitwise_or", torch.bitwise_or), ("bitwise_xor", torch.bitwise_xor)]:
    case(name, [p, q], [x0, x1], f, grad=[])
for name, f in [("bitwise_and", torch.bitwise_and), ("bitwise_or", torch.bitwise_or), ("bitwise_xor", torch.bitwise_xor)]:
    case(name, [ints(5, high=100), ints(5, high=100)], [x0, x1], f, grad=[], tag="integers")
case("logical_not", [p], [x0], torch.logical_not, grad=[])
case("bitwise_not", [ints(5, high=100)], [x0], torch.bitwise_not, grad=[])
special = torch.tensor([1.0, float("inf"), float("-inf"), float("nan"), 0.0], dtype=torch.float64)
for name, f in [("isnan", torch.isnan), ("isinf", torch.isinf), ("isfinite", torch.isfinite)]:
    case(name, [special], [x0], f, grad=[])
case("dropout", [rand(3, 4)], [x0, 0.5, False], lambda x: x, tag="evaluation")
case("dropout", [rand(3, 4)], [x0, 0.0, True], lambda x: x, tag="p = 0")
for k in (-1, 0, 2):
    case("tril", [rand(2, 4, 5)], [x0, k], lambda x, k=k: x.tril(k))
    case("triu", [rand(2, 4, 5)], [x0, k], lambda x, k=k: x.triu(k))
case("clone", [rand(3, 4)], [x0], torch.clone)
case("contiguous", [rand(3, 4)], [x0], torch.clone)
# ====}

# {==== reduce ====
for name, f in [("sum", torch.sum), ("mean", torch.mean)]:
    case(name, [rand(3, 4, 5)], [x0], f)
    case(name, [rand(3, 4, 5)], [x0, 1], lambda x, f=f: f(x, 0))
    case(name, [rand(3, 4, 5)], [x0, -1, {"keepdim": True}], lambda x, f=f: f(x, -1, keepdim=True))
    case(name, [rand(3, 4, 5)], [x0, [1, 3]], lambda x, f=f: f(x, (0, 2)))
case("sum", [rand(0, 3)], [x0, 1], lambda x: x.sum(0), tag="empty")
case("sum", [ints(3, 4, high=9)], [x0, 2], lambda x: x.sum(1), grad=[], tag="integers")
case("sum", [rand(90, 50)], [x0], torch.sum, tag="long", growth=8)
case("sum", [rand(90, 50)], [x0, 1], lambda x: x.sum(0), tag="columns", growth=8)
case("prod", [rand(3, 4, away=0.5)], [x0], torch.prod, growth=16)
case("prod", [rand(3, 4, away=0.5)], [x0, 2], lambda x: x.prod(1), growth=8)
for c in (0, 1):
    case("var", [rand(3, 6)], [x0, 2, {"correction": c}], lambda x, c=c: x.var(1, correction=c), growth=8)
    case("std", [rand(3, 6)], [x0, 2, {"correction": c}], lambda x, c=c: x.std(1, correction=c), growth=8)
case("var", [rand(3, 6)], [x0], lambda x: x.var(), growth=8)
case("std", [rand(3, 6)], [x0, 1, {"keepdim": True}], lambda x: x.std(0, keepdim=True), growth=8)
case("amax", [distinct(3, 5)], [x0, 2], lambda x: x.amax(1))
case("amin", [distinct(3, 5)], [x0, [1, 2]], lambda x: x.amin((0, 1)))
case("max", [distinct(3, 5)], [x0], torch.max)
case("min", [distinct(3, 5)], [x0], torch.min)
case("max", [distinct(3, 5)], [x0, 1], lambda x: tuple(x.max(0)))
case("min", [distinct(3, 5)], [x0, -1, {"keepdim": True}], lambda x: tuple(x.min(1, keepdim=True)))
case("argmax", [distinct(3, 5)], [x0], torch.argmax, grad=[])
case("argmax", [distinct(3, 5)], [x0, -1], lambda x: x.argmax(-1), grad=[])
case("argmin", [distinct(3, 5)], [x0, 1, {"keepdim": True}], lambda x: x.argmin(0, keepdim=True), grad=[])
for power in (1, 2, 3):
    case("norm", [rand(3, 4, away=0.5)], [x0, power], lambda x, n=power: x.norm(n), growth=8)
case("norm", [rand(3, 4, away=0.5)], [x0, 2, 2], lambda x: x.norm(2, 1), growth=8)
case("logsumexp", [rand(3, 4)], [x0, 2], lambda x: x.logsumexp(1))
case("logsumexp", [rand(3, 4)], [x0, 1, {"keepdim": True}], lambda x: x.logsumexp(0, keepdim=True))
case("all", [m], [x0], torch.all, grad=[])
case("all", [m], [x0, 1], lambda x: x.all(0), grad=[])
case("any", [m], [x0], torch.any, grad=[])
case("any", [m], [x0, 2, {"keepdim": True}], lambda x: x.any(1, keepdim=True), grad=[])
case("cumsum", [rand(3, 5)], [x0, 2], lambda x: x.cumsum(1), growth=8)
case("cumsum", [rand(3, 5)], [x0, 1], lambda x: x.cumsum(0), growth=8)
for name, f in [("softmax", F.softmax), ("log_softmax", F.log_softmax)]:
    case(name, [rand(3, 5)], [x0, -1], lambda x, f=f: f(x, -1))
    case(name, [rand(3, 5, 4)], [x0, 2], lambda x, f=f: f(x, 1))
    case(name, [rand(2, 130)], [x0, 2], lambda x, f=f: f(x, 1), tag="long")
# ====}

# {==== matmul ====
case("matmul", [rand(3, 4), rand(4, 5)], [x0, x1], torch.matmul, growth=8)
case("matmul", [rand(4), rand(4, 5)], [x0, x1], torch.matmul, growth=8, tag="vector, matrix")
case("matmul", [rand(3, 4), rand(4)], [x0, x1], torch.matmul, growth=8, tag="matrix, vector")
case("matmul", [rand(4), rand(4)], [x0, x1], torch.matmul, growth=8, tag="vectors")
case("matmul", [rand(2, 1, 3, 4), rand(5, 4, 6)], [x0, x1], torch.matmul, growth=8, tag="broadcast batches")
case("matmul", [rand(2, 3, 4), rand(4, 5)], [x0, x1], torch.matmul, growth=8, tag="batch by matrix")
case("matmul", [rand(70, 65), rand(65, 90)], [x0, x1], torch.matmul, growth=32, tag="larger")
case("matmul", [rand(3, 0), rand(0, 5)], [x0, x1], torch.matmul, tag="empty")
case("mm", [rand(3, 4), rand(4, 5)], [x0, x1], torch.mm, growth=8)
case("bmm", [rand(2, 3, 4), rand(2, 4, 5)], [x0, x1], torch.bmm, growth=8)
case("mv", [rand(3, 4), rand(4)], [x0, x1], torch.mv, growth=8)
case("dot", [rand(4), rand(4)], [x0, x1], torch.dot, growth=8)
case("outer", [rand(3), rand(4)], [x0, x1], torch.outer)
case("addmm", [rand(5), rand(3, 4), rand(4, 5)], [x0, x1, x2, {"beta": 0.5, "alpha": 2.0}], lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), growth=12)
case("baddbmm", [rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5)], [x0, x1, x2], torch.baddbmm, growth=12)
acts = {"none": lambda x: x, "relu": torch.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
        "tanh": torch.tanh, "sigmoid": torch.sigmoid}
for act, f in acts.items():
    case("linear", [rand(3, 4), rand(5, 4), rand(5)], [x0, x1, x2, {"activation": act}], lambda x, w, b, f=f: f(F.linear(x, w, b)), growth=16, tag=act)
case("linear", [rand(2, 3, 4), rand(5, 4)], [x0, x1], F.linear, growth=8, tag="no bias, 3 dims")
case("linear", [rand(4), rand(5, 4), rand(5)], [x0, x1, x2], F.linear, growth=8, tag="vector")
for act in ("relu", "gelu", "gelu_tanh"):
    case("mlp", [rand(3, 4), rand(6, 4), rand(6), rand(5, 6), rand(5)], [T(0), T(1), T(2), T(3), T(4), {"activation": act}],
         lambda x, w1, b1, w2, b2, f=acts[act]: F.linear(f(F.linear(x, w1, b1)), w2, b2), growth=64, tag=act)
# ====}

# {==== conv ====
case("conv2d", [rand(2, 3, 6, 7), rand(4, 3, 3, 3), rand(4)], [x0, x1, x2], F.conv2d, growth=16)
case("conv2d", [rand(2, 3, 6, 7), rand(4, 3, 3, 3), rand(4)], [x0, x1, x2, {"padding": 1, "stride": 2}],
     lambda x, w, b: F.conv2d(x, w, b, padding=1, stride=2), growth=16, tag="stride, padding")
case("conv2d", [rand(1, 4, 7, 7), rand(6, 2, 3, 2)], [x0, x1, None, {"padding": [1, 0], "dilation": [2, 1], "groups": 2}],
     lambda x, w: F.conv2d(x, w, padding=(1, 0), dilation=(2, 1), groups=2), growth=16, tag="dilation, groups")
case("conv2d", [rand(2, 3, 6, 7), rand(4, 3, 3, 3), rand(4)], [x0, x1, x2, {"activation": "relu", "padding": 1}],
     lambda x, w, b: torch.relu(F.conv2d(x, w, b, padding=1)), growth=16, tag="relu")
case("conv2d", [rand(2, 3, 5, 5), rand(4, 3, 1, 1)], [x0, x1], F.conv2d, growth=8, tag="1x1")
case("max_pool2d", [distinct(2, 3, 6, 7)], [x0, 2], lambda x: F.max_pool2d(x, 2))
case("max_pool2d", [distinct(1, 2, 7, 7)], [x0, 3, {"stride": 2, "padding": 1}], lambda x: F.max_pool2d(x, 3, 2, 1))
case("avg_pool2d", [rand(2, 3, 6, 7)], [x0, 2], lambda x: F.avg_pool2d(x, 2))
case("avg_pool2d", [rand(1, 2, 7, 7)], [x0, [3, 2], {"stride": 2, "padding": 1}], lambda x: F.avg_pool2d(x, (3, 2), 2, 1))
case("adaptive_avg_pool2d", [rand(2, 3, 6, 7)], [x0, 1], lambda x: F.adaptive_avg_pool2d(x, 1), growth=8)
case("adaptive_avg_pool2d", [rand(2, 3, 6, 7)], [x0, [3, 4]], lambda x: F.adaptive_avg_pool2d(x, (3, 4)), growth=8)
# ====}

# {==== norm ====
case("layer_norm", [rand(3, 8), rand(8), rand(8)], [x0, [8], x1, x2], lambda x, w, b: F.layer_norm(x, (8,), w, b), growth=32)
case("layer_norm", [rand(2, 3, 4)], [x0, [3, 4]], lambda x: F.layer_norm(x, (3, 4)), growth=32, tag="two dims, plain")
case("rms_norm", [rand(3, 8), rand(8)], [x0, [8], x1], lambda x, w: F.rms_norm(x, (8,), w, 1e-6), growth=32)
case("add_layer_norm", [rand(3, 8), rand(3, 8), rand(8), rand(8)], [x0, x1, [8], x2, T(3)],
     lambda x, r, w, b: (F.layer_norm(x + r, (8,), w, b), x + r), growth=32)
case("batch_norm", [rand(4, 3, 2, 2), rand(3, low=0.5), rand(3)], [x0, None, None, x1, x2, {"training": True}],
     lambda x, w, b: F.batch_norm(x, None, None, w, b, True), growth=48, tag="training")
case("batch_norm", [rand(4, 3, 2), rand(3), rand(3, low=0.5), rand(3), rand(3)], [x0, x1, x2, T(3), T(4)],
     lambda x, rm, rv, w, b: F.batch_norm(x, rm, rv, w, b, False), grad=[0, 3, 4], growth=32, tag="evaluation")
# ====}

# {==== loss ====
target = ints(6, high=5)
holes = target.clone()
holes[2] = -100
case("cross_entropy", [rand(6, 5), target], [x0, x1], F.cross_entropy, growth=8)
case("cross_entropy", [rand(6, 5), holes, rand(5, low=0.5)], [x0, x1, x2, {"label_smoothing": 0.125}],
     lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.125), grad=[0], growth=16, tag="weights, smoothing, ignored")
for r in ("none", "sum"):
    case("cross_entropy", [rand(6, 5), holes], [x0, x1, {"reduction": r}], lambda x, t, r=r: F.cross_entropy(x, t, reduction=r), growth=8, tag=r)
case("cross_entropy", [rand(2, 5, 3), ints(2, 3, high=5)], [x0, x1], F.cross_entropy, growth=8, tag="positions")
case("cross_entropy", [rand(4, 5), F.softmax(rand(4, 5), 1).mul(16).round() / 16], [x0, x1], F.cross_entropy, grad=[0], growth=8, tag="probabilities")
case("linear_cross_entropy", [rand(6, 4), rand(5, 4), target], [x0, x1, x2], lambda x, w, t: F.cross_entropy(F.linear(x, w), t), growth=64)
case("linear_cross_entropy", [rand(6, 4), rand(5, 4), holes, rand(5)], [x0, x1, x2, T(3), {"reduction": "sum"}],
     lambda x, w, t, b: F.cross_entropy(F.linear(x, w, b), t, reduction="sum"), growth=64, tag="bias, sum, ignored")
case("nll_loss", [rand(6, 5), holes, rand(5, low=0.5)], [x0, x1, x2], lambda x, t, w: F.nll_loss(x, t, w), grad=[0], growth=8)
case("nll_loss", [rand(6, 5), target], [x0, x1, {"reduction": "none"}], lambda x, t: F.nll_loss(x, t, reduction="none"))
for name, f in [("mse_loss", F.mse_loss), ("l1_loss", F.l1_loss), ("smooth_l1_loss", F.smooth_l1_loss)]:
    for r in ("mean", "sum", "none"):
        case(name, [rand(3, 4), distinct(3, 4) + 1 / 32], [x0, x1, {"reduction": r}], lambda x, t, f=f, r=r: f(x, t, reduction=r), growth=8)
labels = (torch.rand(3, 4) > 0.5).double()
case("binary_cross_entropy_with_logits", [rand(3, 4), labels], [x0, x1], F.binary_cross_entropy_with_logits, grad=[0], growth=8)
case("binary_cross_entropy_with_logits", [rand(3, 4), labels, rand(4, low=0.5)], [x0, x1, x2, {"pos_weight": 2.0, "reduction": "sum"}],
     lambda x, t, w: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=torch.tensor(2.0), reduction="sum"), grad=[0], growth=16)
case("binary_cross_entropy", [rand(3, 4, low=0.125, high=0.875), labels], [x0, x1], F.binary_cross_entropy, grad=[0], growth=8)
case("kl_div", [rand(3, 4), rand(3, 4, low=0.25, high=1)], [x0, x1], lambda x, t: F.kl_div(x, t, reduction="sum") / x.numel(), grad=[0], growth=8)
case("kl_div", [rand(3, 4), rand(3, 4)], [x0, x1, {"log_target": True, "reduction": "batchmean"}],
     lambda x, t: F.kl_div(x, t, log_target=True, reduction="batchmean"), grad=[0], growth=8)
# ====}

# {==== attention ====
def attention(**options):
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, mask[0] if mask else None, **options)


qkv = [rand(2, 2, 5, 4), rand(2, 2, 5, 4), rand(2, 2, 5, 4)]
case("scaled_dot_product_attention", qkv, [x0, x1, x2], attention(), growth=64)
case("scaled_dot_product_attention", qkv, [x0, x1, x2, None, {"is_causal": True}], attention(is_causal=True), growth=64, tag="causal")
case("scaled_dot_product_attention", [rand(1, 2, 3, 4), rand(1, 2, 7, 4), rand(1, 2, 7, 4)], [x0, x1, x2, None, {"scale": 0.25}],
     attention(scale=0.25), growth=64, tag="cross, scale")
mask = torch.rand(5, 5) > 0.4
mask[:, 0] = True
case("scaled_dot_product_attention", qkv + [mask], [x0, x1, x2, T(3)], attention(), growth=64, tag="bool mask")
case("scaled_dot_product_attention", qkv + [rand(2, 1, 5, 5)], [x0, x1, x2, T(3)], attention(), grad=[0, 1, 2], growth=64, tag="float mask")
case("scaled_dot_product_attention", [rand(1, 1, 70, 8), rand(1, 1, 70, 8), rand(1, 1, 70, 8)], [x0, x1, x2, None, {"is_causal": True}],
     attention(is_causal=True), growth=64, tag="causal, several tiles")
# ====}

# {==== index ====
case("embedding", [ints(2, 3, high=5), rand(5, 4)], [x0, x1], F.embedding, growth=8)
case("embedding", [ints(20, high=3), rand(3, 4)], [x0, x1, {"padding_idx": 1}], lambda i, w: F.embedding(i, w, padding_idx=1), growth=24, tag="padding")
case("gather", [rand(3, 5), ints(3, 2, high=5)], [x0, 2, x1], lambda x, i: x.gather(1, i), growth=8)
case("gather", [rand(3, 5), ints(4, 5, high=3)], [x0, 1, x1], lambda x, i: x.gather(0, i), growth=8)
case("scatter_add", [rand(3, 5), ints(3, 4, high=5), rand(3, 4)], [x0, 2, x1, x2], lambda x, i, s: x.scatter_add(1, i, s), growth=8)
case("index_select", [rand(3, 5), ints(6, high=5)], [x0, 2, x1], lambda x, i: x.index_select(1, i), growth=8)
case("index_add", [rand(3, 5), ints(4, high=3), rand(4, 5)], [x0, 1, x1, x2], lambda x, i, s: x.index_add(0, i, s), growth=8)
case("index_put", [rand(5, 3), torch.tensor([3, 0]), rand(2, 3)], [x0, x1, x2], lambda x, i, s: x.index_put((i,), s))
case("masked_select", [rand(3, 4), m], [x0, x1], torch.masked_select)
case("masked_scatter", [rand(3, 4), m, rand(12)], [x0, x1, x2], torch.masked_scatter)
case("nonzero", [rand(3, 4, low=-0.125, high=0.125)], [x0], torch.nonzero, grad=[])
case("one_hot", [ints(2, 3, high=4), ], [x0, 4], lambda i: F.one_hot(i, 4), grad=[])
case("topk", [distinct(3, 6)], [x0, 2], lambda x: tuple(x.topk(2)))
case("topk", [distinct(6, 3)], [x0, 3, 1, {"largest": False}], lambda x: tuple(x.topk(3, 0, largest=False)))
case("sort", [distinct(3, 6)], [x0], lambda x: tuple(x.sort()))
case("sort", [distinct(3, 6)], [x0, 1, {"descending": True}], lambda x: tuple(x.sort(0, descending=True)))
case("cat", [rand(2, 3), rand(2, 2), rand(2, 1)], [[x0, x1, x2], 2], lambda *xs: torch.cat(xs, 1))
case("stack", [rand(2, 3), rand(2, 3)], [[x0, x1], 3], lambda *xs: torch.stack(xs, 2))
case("flip", [rand(3, 4)], [x0, [1, 2]], lambda x: x.flip((0, 1)))
case("repeat_interleave", [rand(3, 4)], [x0, 2, 2], lambda x: x.repeat_interleave(2, 1), growth=8)
# ====}

# {==== view ====
case("view", [rand(3, 4)], [x0, [2, -1]], lambda x: x.view(2, 6))
case("reshape", [rand(3, 4)], [x0, [2, 6]], lambda x: x.reshape(2, 6))
case("flatten", [rand(2, 3, 4)], [x0, 2], lambda x: x.flatten(1))
case("unflatten", [rand(2, 12)], [x0, 2, [3, -1]], lambda x: x.unflatten(1, (3, 4)))
case("transpose", [rand(2, 3, 4)], [x0, 1, -1], lambda x: x.transpose(0, 2))
case("permute", [rand(2, 3, 4)], [x0, [3, 1, 2]], lambda x: x.permute(2, 0, 1))
case("t", [rand(3, 4)], [x0], torch.t)
case("squeeze", [rand(2, 1, 3, 1)], [x0], torch.squeeze)
case("squeeze", [rand(2, 1, 3, 1)], [x0, 2], lambda x: x.squeeze(1))
case("unsqueeze", [rand(2, 3)], [x0, 3], lambda x: x.unsqueeze(2))
case("expand", [rand(2, 1, 3)], [x0, [4, 2, 5, -1]], lambda x: x.expand(4, 2, 5, 3), growth=24)
case("narrow", [rand(3, 5)], [x0, 2, 2, 3], lambda x: x.narrow(1, 1, 3))
case("select", [rand(3, 5)], [x0, 2, -1], lambda x: x.select(1, -1))
case("slice", [rand(3, 9)], [x0, 2, 2, 8, 3], lambda x: x[:, 1:8:3])
case("diagonal", [rand(4, 5)], [x0], lambda x: x.diagonal())
case("diagonal", [rand(2, 4, 5)], [x0, 1, 2, 3], lambda x: x.diagonal(1, 1, 2))
# ====}

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    save_file(tensors, os.path.join(folder, "ops.safetensors"), metadata={"cases": json.dumps(cases), "made_with": "torch " + torch.__version__.split("+")[0]})
    print(len(cases), "cases,", len(tensors), "tensors")
