"""vision.py - what the peers of the recipes over pictures share: they train the same model with PyTorch from the
weights that the recipe begins with, over the same samples in the same order, and compare the loss of each step.

watch.lua runs the recipe and writes down its start, order, draws and losses. Pictures are read here by Pillow and the
files of MNIST by numpy, so that the recipe's own reading is compared too.
"""
import argparse
import contextlib
import copy
import gzip
import json
import math
import os
import pathlib
import statistics
import subprocess
import tempfile

import numpy
import torch
from safetensors.torch import load_file

import clock
import common

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Run:
    """What watch.lua wrote of a recipe: parts of its start by name, order, draws and rows of steps."""

    def __init__(self, folder):
        self.start = load_file(folder / "start.safetensors")
        self.order = json.loads((folder / "order.json").read_text())
        self.rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
        draws = folder / "draws.safetensors"
        drawn = load_file(draws) if draws.exists() else {}
        self.draws = [drawn[str(i + 1)] for i in range(len(drawn))]

    def weights(self, part="model"):
        head = part + "/"
        return {name[len(head):]: t for name, t in self.start.items() if name.startswith(head)}

    def batches(self):
        """Positions of the samples, batch by batch, over the epochs."""
        return [batch for epoch in self.order for batch in epoch]


def options(recipe, folder):
    """The command line of a peer; what it does not know goes to the recipe. folder: its data, below GIBBOUS_DATA."""
    data = os.environ.get("GIBBOUS_DATA")
    parser = argparse.ArgumentParser(description=f"Train recipes/{recipe}.lua beside PyTorch and compare the losses.")
    parser.add_argument("--data", default=data and os.path.join(data, folder), required=not data)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--also", default="", help="more precisions, by commas, whose mean losses are shown")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="train to the end, and print the metric")
    parser.add_argument("--bf16", action="store_true", help="with --full: in PyTorch's bfloat16 autocast")
    parser.add_argument("--cost", choices=["float32", "bfloat16", "float32-last", "bfloat16-last"],
                        help="what PyTorch's steps cost, by cost.py; -last: channels last")
    parser.add_argument("--double", action="store_true", help="run PyTorch in float64 too")
    parser.add_argument("--threads", type=int, default=int(os.environ.get("GIBBOUS_PEER_THREADS", "1")))
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of each loss")
    parser.add_argument("--gibbous", default=os.environ.get("GIBBOUS", str(ROOT / "build/gibbous")))
    found, rest = parser.parse_known_args()
    found.rest = [word for word in rest if word != "--"]
    torch.set_num_threads(found.threads)
    return found


def watch(recipe, args, *more, epochs=1, precision="32-true"):
    """Run the recipe for so many steps; the order of so many epochs is written."""
    args.more = more
    with tempfile.TemporaryDirectory() as folder:
        command = [args.gibbous, "--threads", str(args.threads), "tests/peers/watch.lua", folder, str(args.steps),
                   f"recipes/{recipe}.lua", "--data", args.data, "--precision", precision, "--device", "cpu",
                   "--seed", str(args.seed), "--out", "", *more, *args.rest]
        environment = dict(os.environ, GIBBOUS_PEER_EPOCHS=str(epochs))
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=environment)
        return Run(pathlib.Path(folder))


def option(args, name, default):
    """The value of an option that goes to the recipe."""
    text = f"--{name}"
    return type(default)(args.rest[args.rest.index(text) + 1]) if text in args.rest else default


# {==== data ====

def idx(path):
    """A file in MNIST's format."""
    path = pathlib.Path(path)
    packed = path.with_name(path.name + ".gz")
    content = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    ndim = content[3]
    shape = [int.from_bytes(content[4 + 4 * i:8 + 4 * i], "big") for i in range(ndim)]
    return torch.from_numpy(numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * ndim).reshape(shape).copy())


def digits(folder, part="train"):
    """Images [n, 1, 28, 28] from 0 to 1 that train or test, and their labels."""
    folder = pathlib.Path(folder)
    whole = any(folder.glob("train-images*"))
    name = "train" if whole and part == "train" else "t10k"
    chosen = slice(None) if whole else slice(8000) if part == "train" else slice(8000, None)
    images, labels = idx(folder / f"{name}-images-idx3-ubyte"), idx(folder / f"{name}-labels-idx1-ubyte")
    return (images[chosen, None] / 255).float(), labels[chosen].long()


def pixels(path, mode):
    """A picture as floats [channels, height, width] from 0 to 1."""
    from PIL import Image
    found = numpy.asarray(Image.open(path).convert(mode))
    found = found[..., None] if found.ndim == 2 else found
    return torch.from_numpy(found.transpose(2, 0, 1).copy()) / 255


class Pictures:
    """Pictures in a folder per class, read when they are asked for, normalised as the recipes do it."""

    def __init__(self, folder, size=32):
        classes = sorted(p for p in pathlib.Path(folder).iterdir() if p.is_dir())
        self.files = [(path, k) for k, c in enumerate(classes) for path in sorted(c.iterdir())]
        self.classes, self.size = len(classes), size
        self.mean = torch.tensor([0.491, 0.482, 0.447])[:, None, None]
        self.std = torch.tensor([0.247, 0.244, 0.262])[:, None, None]

    def batch(self, positions):
        found = [self.files[i] for i in positions]
        x = torch.stack([(pixels(path, "RGB") - self.mean) / self.std for path, _ in found])
        return x, torch.tensor([k for _, k in found])

# ====}


# {==== training ====

class NormRelu(torch.nn.BatchNorm2d):
    """A norm and the ReLU behind it, which the recipes take as one module."""

    def forward(self, x):
        return torch.nn.functional.relu(super().forward(x))


def load(model, weights):
    """Weights by the recipe's names, which are PyTorch's; all that the model has."""
    missing, extra = model.load_state_dict({name: t.clone() for name, t in weights.items()}, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    assert not missing and not extra, (missing, extra)
    return model


def groups(model, weight_decay):
    """optim.groups: no decay on biases and norms."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def cosine(optimizer, total, warmup):
    """The Trainer's { "Cosine", warmup = }: a share of the steps, or so many."""
    warm = warmup if isinstance(warmup, int) else math.floor(warmup * total)
    steps = max(total - warm, 1)

    def factor(t):
        if t < warm:
            return (t + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * min((t - warm) / steps, 1)))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def scope(args):
    """What forward runs in: PyTorch's autocast where --cost or --bf16 asks for 16 bits."""
    asked = args.bf16 or bool(args.cost) and args.cost.startswith("bfloat16")
    return torch.autocast("cpu", torch.bfloat16, enabled=asked)


def in_format(args, *tensors):
    """Images [n, c, h, w] in the memory order that --cost asks for."""
    last = args.cost and args.cost.endswith("-last")
    return [t.contiguous(memory_format=torch.channels_last) if last and t.ndim == 4 else t for t in tensors]


def train(model, optimizer, batches, loss_of, schedule=None, clip=None, forward=contextlib.nullcontext, after=None):
    """One step a batch; the losses."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        with forward():
            loss = loss_of(model, *batch)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if schedule:
            schedule.step()
        if after:
            after()
        losses.append(loss.item())
    return losses


def classify(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)

# ====}


class Average:
    """gb.Trainer's average { mode = "ema", warmup = true } of a model: weights, and buffers as they are."""

    def __init__(self, model, decay):
        self.live, self.model, self.decay, self.count = model, copy.deepcopy(model), decay, 0

    @torch.no_grad()
    def __call__(self):
        decay = min(self.decay, (1 + self.count) / (10 + self.count)) if self.count else 0.0
        self.count += 1
        for mean, p in zip(self.model.parameters(), self.live.parameters()):
            mean.lerp_(p, 1 - decay)
        for mean, b in zip(self.model.buffers(), self.live.buffers()):
            mean.copy_(b)


def accuracy(model, test):
    """In percent."""
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in test)
    return 100 * hits / sum(len(y) for _, y in test)


def full(recipe, args, make, loss_of, clip, metric, decay):
    """Train to the end over the batches that the recipe made, and print the metric of its test batches. decay: of the
    average that is measured in the model's place."""
    recording = common.record(recipe, ["--data", args.data, "--device", "cpu", "--seed", str(args.seed), "--precision",
                                       "32-true", *args.rest], 0)
    model, optimizer, schedule = make()
    load(model, recording.models[0])
    average = Average(model, decay) if decay else None
    train(model, optimizer, recording.train, loss_of, schedule, clip, lambda: scope(args), average)
    model = (average.model if average else model).eval()
    with torch.no_grad(), scope(args):
        print(recording.output.strip())
        print(f"{recipe}: PyTorch {metric(model, recording.test):.4f}")


def as_double(batches):
    return [tuple(t.double() if t.is_floating_point() else t for t in batch) for batch in batches]


def compare(name, args, ours, theirs, exact=None):
    """How far the losses are from each other: at most the tolerance. A run that makes more of each rounding shows so
    by PyTorch's float32, which is then as far from its float64 (--double); the recipe is at most twice as far."""
    assert len(ours) == len(theirs) == args.steps, (len(ours), len(theirs))
    worst = max(range(len(ours)), key=lambda i: abs(ours[i] - theirs[i]))
    off = abs(ours[worst] - theirs[worst])
    last = min(20, len(ours))
    count = len(ours)
    print(f"{name}: {count} losses, furthest from PyTorch's float32 by {off:.2e} at step {worst + 1}")
    means = [statistics.mean(losses[-last:]) for losses in (ours, theirs)]
    print(f"  first {ours[0]:.6f} and {theirs[0]:.6f}; mean of the last {last}: {means[0]:.5f} and {means[1]:.5f}")
    fine = off <= args.tolerance
    if exact:
        mine, its = (max(abs(a - b) for a, b in zip(losses, exact)) for losses in (ours, theirs))
        print(f"  furthest from PyTorch's float64: the recipe {mine:.2e}, PyTorch's float32 {its:.2e}")
        fine = fine or mine <= 2 * its
    if not fine:
        for i, (a, b) in enumerate(zip(ours, theirs)):
            print(f"  step {i + 1}: {a:.7f} {b:.7f} {a - b:+.1e}" + (f"  float64 {exact[i]:.7f}" if exact else ""))
        raise SystemExit(f"{name}: off by more than {args.tolerance}")
    print(f"  {'ok' if off <= args.tolerance else 'further than the tolerance, as roundings grow in this run'}")


def curves(recipe, args, ours, theirs):
    """The mean losses of five parts of the run: PyTorch's float32 and the recipe's precisions."""
    def show(name, losses, rest=""):
        at = [i * len(losses) // 5 for i in range(6)]
        means = [f"{statistics.mean(losses[a:b]):8.4f}" for a, b in zip(at, at[1:])]
        print(f"  {name:20s} {' '.join(means)}{rest}")
    show("PyTorch float32", theirs)
    show("32-true", ours)
    for precision in filter(None, args.also.split(",")):
        rows = watch(recipe, args, *args.more, precision=precision).rows
        skipped = [i + 1 for i in range(1, len(rows)) if rows[i]["scale"] < rows[i - 1]["scale"]]
        show(precision, [float(row["loss"]) for row in rows],
             f"  scale {rows[-1]['scale']:g}" + (f", halved after the steps {skipped}" if skipped else ""))


def peer(recipe, args, run, make, batches, loss_of=classify, clip=None, metric=accuracy, decay=None):
    """Train what make(dtype) gives - model, optimizer, schedule - and compare. batches is a function, called again for
    each run, so that they need not be kept. metric(model, batches) and decay are for --full."""
    if args.full:
        full(recipe, args, make, loss_of, clip, metric, decay)
        return
    ours = [row["loss"] for row in run.rows]
    model, optimizer, schedule = make()
    if args.cost:
        if args.cost.endswith("-last"):
            model.to(memory_format=torch.channels_last)
        found = [in_format(args, *batch) for batch in batches()]
        train(model, optimizer, clock.batches(found), loss_of, schedule, clip, lambda: scope(args))
        clock.report()
        return
    theirs = train(model, optimizer, batches(), loss_of, schedule, clip)
    exact = None
    if args.double:
        model, optimizer, schedule = make(torch.float64)
        exact = train(model, optimizer, as_double(batches()), loss_of, schedule, clip)
    if args.also:
        curves(recipe, args, ours, theirs)
    else:
        compare(recipe, args, ours, theirs, exact)
