"""The cases that goldens are made of: a module per family of ops (see ops.def), and their common words.

Inputs are multiples of 1/16 below 4 in magnitude, so every floating dtype holds them exactly and one float64 reference
serves all. They are drawn by Philox, whose key is the SHA-256 of the case's name and the input's place: no case changes
the numbers of another, wherever it is added, moved or removed.
"""
import hashlib
import importlib
import os
import pkgutil

import lines  # before torch: it says how torch is to compute
import numpy
import torch

FAMILIES = sorted(module.name for module in pkgutil.iter_modules([os.path.dirname(__file__)]))


class Words:
    """Random 32-bit words that belong to a name."""

    def __init__(self, name):
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
        self.generator = numpy.random.Philox(key=key)

    def take(self, n):
        return torch.from_numpy((self.generator.random_raw(n) >> 32).astype("int64"))

    def below(self, shape, high):
        """Integers in [0, high)."""
        shape = torch.Size(shape)
        return (self.take(shape.numel()) * high >> 32).reshape(shape)


class Drawn:
    """An input that is drawn when its case has a name: `draw` makes it of Words."""

    def __init__(self, draw):
        self.draw = draw

    def map(self, fn):
        """What fn makes of the drawn tensor."""
        return Drawn(lambda words: fn(self.draw(words)))

    def __add__(self, number):
        return self.map(lambda x: x + number)

    def __sub__(self, number):
        return self.map(lambda x: x - number)


def rand(*shape, low=-2.0, high=2.0, away=None):
    """Multiples of 1/16 in [low, high]; `away` keeps them that far from 0, where an op has a kink."""
    first, last = int(low * 16), int(high * 16)

    def draw(words):
        x = (words.below(shape, last - first + 1) + first).double() / 16
        return torch.where(x.abs() < away, torch.full_like(x, away), x) if away else x

    return Drawn(draw)


def distinct(*shape):
    """No two elements equal, none 0: for max, sort, pooling."""
    n = torch.Size(shape).numel()
    return Drawn(lambda words: ((words.take(n).argsort(stable=True).double() - n // 2) * 2 + 1).reshape(shape) / 16)


def ints(*shape, high):
    return Drawn(lambda words: words.below(shape, high))


def flags(*shape, share=0.5):
    """Bools, of which this share is true."""
    return Drawn(lambda words: words.below(shape, 1000) < share * 1000)


class T:
    """Stands for input k in a case's arguments."""

    def __init__(self, k):
        self.k = k


x0, x1, x2, x3, x4, x5 = (T(k) for k in range(6))


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


class Case:
    """One op on some inputs. `row` is its line in a golden file, without tensors; `ups`: the gradients that come in."""

    def __init__(self, op, inputs, args, fn, grad, growth, tag):
        self.name = f"{op} ({tag})" if tag else op
        self.inputs = [x.draw(self.words(f"in{i}")) if isinstance(x, Drawn) else x for i, x in enumerate(inputs)]
        if grad is None:
            grad = [i for i, x in enumerate(self.inputs) if x is not None and x.is_floating_point()]
        self.fn, self.wanted, self.growth = fn, grad, growth
        outs, graded, _ = self.run(self.inputs)
        self.grad = grad if graded else []
        self.ups = [rand(*o.shape, away=0.25).draw(self.words(f"up{i}")) for i, o in enumerate(graded) if self.grad]
        self.row = {"name": self.name, "op": op, "tag": tag, "args": [encode(a) for a in args], "inputs": len(inputs),
                    "outputs": len(outs), "grad": self.grad, "growth": growth}

    def words(self, what):
        """The case's own random words for one of its tensors."""
        return Words(f"{self.name}: {what}")

    def run(self, inputs):
        """Outputs, those of them that have a gradient, and the leaves that inputs became."""
        leaves = [x if x is None else x.detach().clone().requires_grad_(i in self.wanted)
                  for i, x in enumerate(inputs)]
        outs = self.fn(*leaves)
        outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        return outs, [o for o in outs if o.is_floating_point() and o.requires_grad], leaves

    def gradients(self, graded, leaves, ups):
        """By place of input; zeros where an input has no part in the results."""
        if not (self.grad and graded):
            return {}
        grads = torch.autograd.grad(graded, [leaves[i] for i in self.grad], ups, allow_unused=True)
        return {i: torch.zeros_like(leaves[i]) if g is None else g for i, g in zip(self.grad, grads)}


collected = None  # the cases of the module that is being read


def case(op, inputs, args, fn, grad=None, growth=4, tag=""):
    """op(args) against fn(*inputs). grad: places of inputs to differentiate (default: every floating one; []: none).
    growth: the tolerance, in spacings of the dtype, that the case's sums allow. tag: what is special about this case of
    its op; the two together are its name. Arguments are as Lua takes them: dimensions count from 1, integers in tensors
    from 0."""
    made = Case(op, inputs, args, fn, grad, growth, tag)
    if made.name in collected:
        raise ValueError(f"there is a case '{made.name}' already: say in `tag` what is special about this one")
    collected[made.name] = made


def of_family(family):
    """The cases of a family, in the order of its module."""
    global collected
    collected = {}
    importlib.import_module(f"cases.{family}")
    return list(collected.values())
