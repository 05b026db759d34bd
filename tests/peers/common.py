"""common.py - what the peers share: a recording of a recipe (record.lua), PyTorch's run of it, and the comparison.

A peer is the recipe's model, loss, optimizer and schedule in PyTorch. It reads no data and draws no numbers: initial
weights and batches come from the recording. Three runs stand side by side: ours in 32-true, PyTorch's in float32, and
PyTorch's in float64, which says who of the two is right where they differ. With --bf16 the first two are ours in
bf16-mixed and PyTorch's autocast.
"""

import argparse
import contextlib
import functools
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from torch import nn

import clock

root = pathlib.Path(__file__).resolve().parents[2]
TOLERANCE = 1e-4
scope = contextlib.nullcontext  # what forward runs in


class Recording:
    """What record.lua wrote: losses, models (a dict of tensors each), train and test (lists of batches), epoch."""

    def __init__(self, tensors, output=""):
        self.losses, self.epoch, self.output = tensors.pop("loss").tolist(), int(tensors.pop("epoch")), output
        self.models, self.train, self.test = [], [], []
        parts = {"models": {}, "train": {}, "test": {}}
        for name, value in tensors.items():
            part, number, rest = name.split(".", 2)
            parts[part].setdefault(int(number), {})[rest] = value
        self.models = [parts["models"][n] for n in sorted(parts["models"])]
        for part in "train", "test":
            for n in sorted(parts[part]):
                batch = parts[part][n]
                getattr(self, part).append([batch[v] for v in sorted(batch, key=int)])


def record(recipe, options, steps):
    """Run recipes/RECIPE.lua for so many losses, or to its end for 0."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "recording.safetensors")
        gibbous = os.environ.get("GIBBOUS", str(root / "build/gibbous"))
        command = [gibbous, "--threads", str(torch.get_num_threads()), "tests/peers/record.lua",
                   f"recipes/{recipe}.lua", out, str(steps), "--out", os.path.join(folder, "weights.safetensors")]
        done = subprocess.run(command + options, cwd=root, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{recipe}: {done.stdout}{done.stderr}")
        return Recording(load_file(out), done.stdout)


def cast(value, dtype):
    """A value of a batch: floats in the run's dtype, ids as they are."""
    return value.to(dtype) if value.is_floating_point() else value


def load(model, state, dtype):
    """The model with the recipe's weights, which have the same names. In float64 nothing is rounded on the way."""
    model.load_state_dict(state, strict=True)
    return model.to(dtype)


def cosine(optimizer, steps, warmup=0, last=0.0):
    """gb.optim.lr.Cosine."""
    def factor(t):
        if t < warmup:
            return (t + 1) / warmup
        return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * min((t - warmup) / steps, 1)))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def groups(model, decay):
    """gb.optim.groups: no decay on biases and norms."""
    norms = {id(p) for m in model.modules() if "Norm" in type(m).__name__ for p in m.parameters()}
    plain = [p for p in model.parameters() if p.dim() < 2 or id(p) in norms]
    kept = [p for p in model.parameters() if not (p.dim() < 2 or id(p) in norms)]
    return [{"params": kept, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


def supervised(make, loss, optimizer, schedule=None, clip=1.0):
    """A run of one model, a step a batch: a function of a recording and a dtype that gives its losses and the model.

    make(recording) gives the model, loss(model, *batch) a tensor, optimizer(model), schedule(optimizer, recording).
    """
    def run(recording, dtype):
        model = load(make(recording), recording.models[0], dtype)
        model.train()
        opt = optimizer(model)
        rates = schedule and schedule(opt, recording)
        losses = []
        for batch in clock.batches(recording.train[:len(recording.losses)]):
            opt.zero_grad()
            with scope():
                value = loss(model, *[cast(v, dtype) for v in batch])
            value.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            if rates:
                rates.step()
            losses.append(value.item())
        return losses, model
    return run


def report(recipe, ours, theirs, exact, rounded=False):
    """Print the losses side by side; the exit status says whether all agree.

    Where both were rounded to 16 bits they need not: ours must be as near to float64 as PyTorch's, within a half.
    """
    print(f"{recipe}: {'step':>4} {'ours':>12} {'PyTorch':>12} {'difference':>11} {'ours-f64':>10} {'PyTorch-f64':>11}")
    worst = 0.0
    for i, (a, b, c) in enumerate(zip(ours, theirs, exact), 1):
        worst = max(worst, abs(a - b)) if math.isfinite(a - b) else math.inf
        print(f"{recipe}: {i:4d} {a:12.7f} {b:12.7f} {a - b:11.1e} {a - c:10.1e} {b - c:11.1e}")
    fine, what = worst <= TOLERANCE, f"largest difference {worst:.1e}"
    if rounded:
        root_mean = [math.sqrt(sum((x - c) ** 2 for x, c in zip(run, exact)) / len(exact)) for run in (ours, theirs)]
        fine = root_mean[0] <= 1.5 * root_mean[1]
        what = f"off float64 by {root_mean[0]:.1e}, PyTorch by {root_mean[1]:.1e} (root mean square)"
    fine = fine and len(ours) == len(theirs) > 0
    print(f"{recipe}: {len(ours)} losses, {what}: {'ok' if fine else 'FAILED'}")
    return 0 if fine else 1


def main(recipe, data, run, plain=(), metric=None, always=(), dropout=None):
    """The command line of a peer. data: below GIBBOUS_DATA; always: options of the recipe; plain: those that switch
    dropout and augmentation off, for the comparison of losses.

    With --full the recipe runs to its end, dropout too, and metric(model, recording.test) counts. Where dropout is
    given, run is a function of it.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--full", action="store_true", help="train to the end, and print both metrics")
    parser.add_argument("--bf16", action="store_true", help="compare bf16-mixed with PyTorch's autocast")
    parser.add_argument("--cost", choices=["float32", "bfloat16"], help="what PyTorch's steps cost, by cost.py")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("rest", nargs="*", help="options of the recipe, behind --")
    args = parser.parse_args()
    if "GIBBOUS_DATA" not in os.environ:
        sys.exit("GIBBOUS_DATA names the folder of the data")
    torch.set_num_threads(int(os.environ.get("GIBBOUS_PEER_THREADS", "1")))
    torch.manual_seed(args.seed)
    if dropout is not None:
        run = run(dropout if args.full else 0.0)
    options = ["--data", os.path.join(os.environ["GIBBOUS_DATA"], data), "--device", "cpu", "--seed", str(args.seed),
               "--precision", "bf16-mixed" if args.bf16 else "32-true", *always]
    global scope
    rounding = functools.partial(torch.autocast, "cpu", torch.bfloat16)
    if args.cost:
        recording = record(recipe, options + list(plain) + args.rest, args.steps)
        if args.cost == "bfloat16":
            scope = rounding
        run(recording, torch.float32)
        clock.report()
        return
    if not args.full:
        recording = record(recipe, options + list(plain) + args.rest, args.steps)
        exact = run(recording, torch.float64)[0]
        if args.bf16:
            scope = rounding
        theirs = run(recording, torch.float32)[0]
        sys.exit(report(recipe, recording.losses, theirs, exact, args.bf16))
    recording = record(recipe, options + args.rest, 0)
    _, model = run(recording, torch.float32)
    model.eval()
    with torch.no_grad():
        print(recording.output.strip())
        print(f"{recipe}: PyTorch {metric(model, recording.test):.4f}")
