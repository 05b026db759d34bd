#!/usr/bin/env python3
"""Golden numbers for optimizers, schedules, layers and the gradient scaler, made with PyTorch.

Usage: python tests/golden/training.py       (needs torch and safetensors; writes tests/golden/training.safetensors)

Optimizers: two float32 parameters, ten given gradients, the parameters after each step. Schedules: the rate at each step. Layers: weights,
input, output and gradients of a module. The scaler: its scale and tracker after each step of a given row of found_inf flags.
"""
import json
import os

import torch
import torch.nn as nn
from safetensors.torch import save_file

torch.manual_seed(3)
tensors, info = {}, {"optimizers": [], "schedules": [], "layers": [], "scalers": []}

# {==== optimizers ====
for kind, options in [
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
]:
    k = len(info["optimizers"])
    params = [torch.randn(3, 5), torch.randn(70)]
    for i, p in enumerate(params):
        tensors[f"optimizer{k}.start{i}"] = p.clone()
    params = [p.requires_grad_() for p in params]
    opt = getattr(torch.optim, kind)(params, foreach=False, **options)
    for step in range(10):
        for i, p in enumerate(params):
            p.grad = torch.randn_like(p)
            if step == 4 and i == 1:
                p.grad = None  # untouched: no decay, no step
            else:
                tensors[f"optimizer{k}.grad{i}.{step}"] = p.grad.clone()
        opt.step()
        if step in (0, 4, 9):
            for i, p in enumerate(params):
                tensors[f"optimizer{k}.after{i}.{step}"] = p.detach().clone()
    info["optimizers"].append({"kind": kind, "options": {n: list(v) if isinstance(v, tuple) else v for n, v in options.items()}})
# ====}

# {==== schedules ====
def rates(make, n):
    p = nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([p], lr=0.5)
    schedule = make(opt)
    out = []
    for _ in range(n):
        out.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
    return out


L = torch.optim.lr_scheduler
info["schedules"] = [
    {"name": "Constant", "options": {}, "rates": rates(lambda o: L.LambdaLR(o, lambda t: 1), 5)},
    {"name": "Linear", "options": {"steps": 8, "first": 0.25, "last": 1.0}, "rates": rates(lambda o: L.LinearLR(o, 0.25, 1.0, 8), 12)},
    {"name": "Cosine", "options": {"steps": 10, "last": 0.1}, "rates": rates(lambda o: L.CosineAnnealingLR(o, 10, 0.05), 11)},
    {"name": "Cosine", "options": {"warmup": 4, "steps": 10, "last": 0.1},
     "rates": rates(lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.25, 1.0, 3), L.CosineAnnealingLR(o, 10, 0.05)], [4]), 14)},
]
# ====}

# {==== layers ====
def layer(name, module, inputs, rename=None, training=True):
    k = len(info["layers"])
    module = module.train(training)
    for n, p in module.state_dict().items():
        tensors[f"layer{k}.weight.{(rename or {}).get(n, n)}"] = p.clone()
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    for i, x in enumerate(inputs):
        tensors[f"layer{k}.in{i}"] = x.clone()
    y = module(*leaves)
    y = y[0] if isinstance(y, tuple) else y
    up = torch.randn_like(y)
    tensors[f"layer{k}.up"], tensors[f"layer{k}.out"] = up, y.detach().clone()
    y.backward(up)
    for i, x in enumerate(leaves):
        if x.grad is not None:
            tensors[f"layer{k}.grad{i}"] = x.grad.clone()
    for n, p in module.named_parameters():
        tensors[f"layer{k}.dweight.{(rename or {}).get(n, n)}"] = p.grad.clone()
    for n, b in module.named_buffers():
        tensors[f"layer{k}.buffer.{n}"] = b.clone()
    info["layers"].append({"name": name, "training": training})


class SelfAttention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(size, heads, batch_first=True)
        nn.init.normal_(self.inner.in_proj_bias)
        nn.init.normal_(self.inner.out_proj.bias)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


layer("Linear", nn.Linear(5, 7), [torch.randn(4, 5)])
layer("Conv2d", nn.Conv2d(3, 6, 3, padding=1, stride=2), [torch.randn(2, 3, 7, 7)])
bn = nn.BatchNorm2d(3)
nn.init.normal_(bn.weight)
nn.init.normal_(bn.bias)
layer("BatchNorm2d", bn, [torch.randn(4, 3, 5, 5)])
layer("LayerNorm", nn.LayerNorm(6), [torch.randn(4, 6)])
layer("RMSNorm", nn.RMSNorm(6, eps=1e-6), [torch.randn(4, 6)])
layer("Embedding", nn.Embedding(9, 4), [torch.randint(0, 9, (3, 5))])
layer("MultiheadAttention", SelfAttention(8, 2), [torch.randn(2, 5, 8)],
      {"inner.in_proj_weight": "qkv.weight", "inner.in_proj_bias": "qkv.bias", "inner.out_proj.weight": "proj.weight", "inner.out_proj.bias": "proj.bias"})
# ====}

# {==== the scaler, by its own kernels ====
for init, growth, backoff, interval, found in [
    (4.0, 2.0, 0.25, 2, [0, 0, 1]),
    (128.0, 2.0, 0.5, 1, [0, 1, 0, 0]),
    (1e38, 16.0, 0.5, 1, [0]),
    (65536.0, 2.0, 0.5, 3, [0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]),
]:
    scale, tracker = torch.tensor([init]), torch.zeros(1, dtype=torch.int32)
    trace = []
    for f in found:
        torch._amp_update_scale_(scale, tracker, torch.tensor([float(f)]), growth, backoff, interval)
        trace.append([scale.item(), tracker.item()])
    info["scalers"].append({"options": {"init_scale": init, "growth_factor": growth, "backoff_factor": backoff, "growth_interval": interval},
                            "found": found, "trace": trace})
# ====}

folder = os.path.dirname(os.path.abspath(__file__))
tensors = {n: t.contiguous() for n, t in tensors.items()}
save_file(tensors, os.path.join(folder, "training.safetensors"), metadata={"info": json.dumps(info), "made_with": "torch " + torch.__version__.split("+")[0]})
print(len(tensors), "tensors")
