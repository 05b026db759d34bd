#!/usr/bin/env python3
"""What ops make of integers, numbers and 0-d tensors of another dtype, made with PyTorch.

Usage: python tests/golden/operands.py       [--check] [FAMILY...]      (needs torch; writes tests/golden/operands/FAMILY.jsonl)

Two kinds of calls. The cases of cases/, their floating inputs made integers of each dtype, and beyond 2^53: whatever PyTorch makes of them, an
error included. And calls by kind of operand, written here: numbers that are fractions, NaN, beyond 2^53 or beyond the range of a dtype, and 0-d
tensors of another dtype. A record holds its inputs, its arguments as Lua takes them, and PyTorch's results; values are written as text, so
that no integer passes through a double.
"""
import collections
import importlib
import warnings

import cases
import lines
import torch
import torch.nn.functional as F

warnings.simplefilter("ignore")
ELEMENTS = 24
BIG = 2**53 + 1
records = []


def text(v):
    if isinstance(v, bool):
        return "1" if v else "0"
    return str(v) if isinstance(v, int) else ("nan" if v != v else repr(float(v)))


def held(t):
    return {"dtype": str(t.dtype)[6:], "shape": list(t.shape), "values": " ".join(text(v) for v in t.detach().reshape(-1).tolist())}


def encode(a):
    if isinstance(a, cases.T):
        return {"in": a.k}
    if isinstance(a, dict):
        return {"options": {k: encode(v) for k, v in a.items()}}
    if isinstance(a, list):
        return [encode(v) for v in a]
    if a is None:
        return {"nil": True}
    return {"number": text(a), "float": isinstance(a, float)} if isinstance(a, (int, float)) and not isinstance(a, bool) else a


def record(op, kind, inputs, args, fn, grad=None):
    """grad: the input to differentiate by (the sum of the results)."""
    leaves = [x if x is None else x.clone().requires_grad_(i == grad) for i, x in enumerate(inputs)]
    entry = {"op": op, "kind": kind, "inputs": [{"nil": True} if x is None else held(x) for x in inputs], "args": args}
    try:
        outs = fn(*leaves)
        outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        entry["out"] = [held(o) for o in outs]
        if grad is not None:
            entry["grad"] = {"by": grad, "value": held(torch.autograd.grad(sum(o.sum() for o in outs), leaves[grad])[0])}
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
        entry["error"] = True
    records.append(entry)


# {==== the cases of cases/ as integers ====
def whole(x, dtype, add=0):
    if x is None or not x.is_floating_point():
        return x
    y = (x * 4).round().to(torch.int64)
    return (y.abs() if dtype == torch.uint8 else y).to(dtype) + add


ops_that_compute = set("""add sub mul div floor_divide remainder pow maximum minimum atan2 neg abs sign exp log sqrt square sin floor clamp addcmul
addcdiv where masked_fill relu eq lt logical_and logical_not bitwise_and bitwise_not isnan sum mean prod amax max argmax all any cumsum cat""".split())


def size(inputs):
    return sum(x.numel() for x in inputs if x is not None)


families = {family: list(cases.of_family(family)) for family in cases.FAMILIES}
every = [case for family in families.values() for case in family]
family_of = {case.row["op"]: family for family in families for case in families[family]}
family_of |= {"arange": "create", "full_like": "create"}  # which have no cases of their own
smallest = {}
for case in every:
    op, n = case.row["op"], size(case.inputs)
    if n > 0:
        smallest[op] = min(n, smallest.get(op, n))

for case in every:
    op, inputs, fn = case.row["op"], case.inputs, case.fn
    floating = [x for x in inputs if x is not None and x.is_floating_point()]
    if (size(inputs) > ELEMENTS and size(inputs) > smallest[op]) or case.row["tag"] == "empty":
        continue
    if op in ("floor_divide", "div") and not all(x.isfinite().all() for x in floating):
        continue  # no integer is infinite, and there are cases of finite numbers
    def again(a):
        if isinstance(a, dict):
            return a if "in" in a or "nil" in a else {"options": {k: encode(v) for k, v in a["options"].items()}}
        return [again(x) for x in a] if isinstance(a, list) else encode(a)

    written = [again(a) for a in case.row["args"]]
    reads = op in ops_that_compute  # the others move elements, or take floats only: one dtype says it
    if not floating:
        record(op, "integer", inputs, written, fn)
        continue
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64) if reads else (torch.int64,):
        record(op, "integer", [whole(x, dtype) for x in inputs], written, fn)
    record(op, "beyond 2^53", [whole(x, torch.int64, BIG) for x in inputs], written, fn)
# ====}

# {==== by kind of operand ====
x0, x1, x2 = ({"in": k} for k in range(3))
u8, i8, i16, i32, i64 = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
small = {u8: [1, 2, 200], i8: [100, 2, -128], i16: [300, 2, -32768], i32: [1, 2, -7], i64: [1, 2, -7]}
binary = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "floor_divide": torch.floor_divide, "remainder": torch.remainder,
          "pow": torch.pow, "maximum": torch.maximum, "minimum": torch.minimum, "atan2": torch.atan2, "eq": torch.eq, "ne": torch.ne,
          "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or,
          "bitwise_xor": torch.bitwise_xor, "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
          "fmod": torch.fmod, "fmax": torch.fmax, "fmin": torch.fmin, "hypot": torch.hypot, "copysign": torch.copysign, "heaviside": torch.heaviside,
          "logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2, "xlogy": torch.xlogy, "xlog1py": torch.special.xlog1py,
          "igamma": torch.igamma, "igammac": torch.igammac, "gcd": torch.gcd, "lcm": torch.lcm, "bitwise_left_shift": torch.bitwise_left_shift,
          "bitwise_right_shift": torch.bitwise_right_shift}
no_number = ("maximum", "minimum", "atan2")  # PyTorch takes tensors only: a 0-d one of the same category stands for the number
tensors_only = ("logical_and", "logical_or", "logical_xor", "fmax", "fmin", "hypot", "igamma", "igammac", "heaviside", "logaddexp", "logaddexp2", "gcd", "lcm")
differentiable = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "atan2", "remainder", "fmod", "fmax", "fmin", "hypot",
                  "copysign", "logaddexp", "logaddexp2", "xlogy", "xlog1py")


def as_number(f, name, n):
    if name not in no_number:
        return lambda x: f(x, n)
    return lambda x: f(x, torch.tensor(n, dtype=torch.float64 if isinstance(n, float) and x.dtype == torch.float64 else None))


for name, f in binary.items():
    for dtype, values in small.items():
        x = torch.tensor(values, dtype=dtype)
        record(name, "integer", [x, x.flip(0)], [x0, x1], f)
        for other in (torch.tensor(3), torch.tensor(203), torch.tensor(3, dtype=u8), torch.tensor(2.5, dtype=torch.float64), torch.tensor(2.5)):
            record(name, "0-d", [x, other], [x0, x1], f)
            if name not in ("floor_divide", "remainder", "fmod"):
                record(name, "0-d", [other, x], [x0, x1], f)
        if name not in tensors_only:
            for n in (3, 0.3, float("nan")):
                record(name, "nan" if n != n else "number", [x], [x0, encode(n)], as_number(f, name, n))
            for n in (300, -5, 2**40):
                record(name, "out of range", [x], [x0, encode(n)], as_number(f, name, n))
    x = torch.tensor([BIG, -BIG, 5])
    record(name, "beyond 2^53", [x, torch.tensor([BIG, BIG, 0 if name in tensors_only else 2])], [x0, x1], f)
    if name not in tensors_only:
        record(name, "beyond 2^53", [x], [x0, encode(BIG + 2)], as_number(f, name, BIG + 2))
    for other in (torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.3)):
        record(name, "0-d", [torch.tensor([0.7, 1.9], dtype=torch.float64), other], [x0, x1], f, 0 if name in differentiable else None)
    if name in differentiable and name not in tensors_only:
        record(name, "number", [torch.tensor([0.7, 1.9], dtype=torch.float64)], [x0, encode(0.3)], as_number(f, name, 0.3), 0)
        record(name, "nan", [torch.tensor([0.7, 1.9], dtype=torch.float64)], [x0, encode(float("nan"))], as_number(f, name, float("nan")), 0)

# The whole table of promotion, between tensors and with a 0-d one.
every_dtype = (torch.float64, torch.float32, torch.float16, torch.bfloat16, i64, i32, i16, i8, u8, torch.bool)
for a in every_dtype:
    for b in every_dtype:
        x, y = torch.tensor([1, 3]).to(a), torch.tensor([2, 1]).to(b)
        record("mul", "promotion", [x, y], [x0, x1], torch.mul)
        record("mul", "promotion", [x, y[0]], [x0, x1], torch.mul)

nan, inf = float("nan"), float("inf")
for dtype, values in small.items():
    x = torch.tensor(values, dtype=dtype)
    m = torch.tensor([True, False, True])
    for low, high in ((0.5, 2.5), (0, 2), (0.0, 2.0), (2, None), (None, 2), (0, inf), (2, 1)):
        record("clamp", "number", [x], [x0, encode(low), encode(high)], lambda x, a=low, b=high: x.clamp(a, b))
    for low, high in ((nan, 1), (0, nan), (nan, None)):
        record("clamp", "nan", [x], [x0, encode(low), encode(high)], lambda x, a=low, b=high: x.clamp(a, b))
    for low, high in ((-1, 300), (300, None), (None, -5), (None, 2**40), (2**40, None), (-2**40, 2**40)):
        record("clamp", "out of range", [x], [x0, encode(low), encode(high)], lambda x, a=low, b=high: x.clamp(a, b))
    for n in (3, -1, 0.5, 300, -257, 2**40, BIG, nan, inf):
        kind = "number" if n in (3, -1, 0.5) else "nan" if n != n else "out of range"
        record("masked_fill", kind, [x, m], [x0, x1, encode(n)], lambda x, m, n=n: x.masked_fill(m, n))
        record("where", kind, [m, x], [x0, x1, encode(n)], lambda m, x, n=n: torch.where(m, x, n))
        record("index_fill", kind, [x, torch.tensor([2, 0])], [x0, 1, x1, encode(n)], lambda x, i, n=n: x.index_fill(0, i, n))
        record("scatter", kind, [x, torch.tensor([2, 0])], [x0, 1, x1, encode(n)], lambda x, i, n=n: x.scatter(0, i, n))
        record("index_put", kind, [x, torch.tensor([2, 0])], [x0, x1, encode(n)], lambda x, i, n=n: x.index_put((i,), torch.full((), n, dtype=x.dtype)))
        record("full_like", kind, [x], [x0, encode(n)], lambda x, n=n: torch.full_like(x, n))
    record("where", "0-d", [m, x, torch.tensor(203)], [x0, x1, x2], torch.where)
    record("where", "0-d", [m, torch.tensor(2.5), x], [x0, x1, x2], torch.where)
    record("addcmul", "0-d", [x, x, torch.tensor(3)], [x0, x1, x2], torch.addcmul)
    record("addcmul", "out of range", [x, x, x], [x0, x1, x2, {"options": {"value": encode(300)}}], lambda x, y, z: torch.addcmul(x, y, z, value=300))
    for n in (2, 0.5, nan):
        kind = "nan" if n != n else "number"
        record("addcmul", kind, [x, x, x], [x0, x1, x2, {"options": {"value": encode(n)}}], lambda x, y, z, n=n: torch.addcmul(x, y, z, value=n))
        record("addcdiv", kind, [x, x, x], [x0, x1, x2, {"options": {"value": encode(n)}}], lambda x, y, z, n=n: torch.addcdiv(x, y, z, value=n))
big = torch.tensor([BIG + 5, -BIG - 9, 3])
m = torch.tensor([True, False, True])
record("clamp", "beyond 2^53", [big], [x0, encode(-BIG), encode(BIG)], lambda x: x.clamp(-BIG, BIG))
record("masked_fill", "beyond 2^53", [big, m], [x0, x1, encode(BIG)], lambda x, m: x.masked_fill(m, BIG))
record("where", "beyond 2^53", [m, big], [x0, x1, encode(BIG)], lambda m, x: torch.where(m, x, BIG))
record("index_put", "beyond 2^53", [big, torch.tensor([2])], [x0, x1, encode(BIG)], lambda x, i: x.index_put((i,), torch.tensor(BIG)))
record("full_like", "beyond 2^53", [big], [x0, encode(BIG)], lambda x: torch.full_like(x, BIG))
record("addcmul", "beyond 2^53", [torch.tensor([1]), torch.tensor([1]), torch.tensor([1])], [x0, x1, x2, {"options": {"value": encode(BIG)}}],
       lambda x, y, z: torch.addcmul(x, y, z, value=BIG))
for name in ("logical_not", "bitwise_not", "sum", "prod", "all", "any", "amax", "amin", "abs", "neg", "sign", "floor"):
    record(name, "beyond 2^53", [torch.tensor([BIG, -BIG - 1, 1])], [x0], getattr(torch, name))
record("arange", "beyond 2^53", [], [encode(BIG), encode(BIG + 3)], lambda: torch.arange(BIG, BIG + 3))
record("arange", "beyond 2^53", [], [encode(BIG + 5), encode(BIG - 2), encode(-2)], lambda: torch.arange(BIG + 5, BIG - 2, -2))

for n in (0.3, nan):
    record("isclose", "nan" if n != n else "number", [torch.tensor([1, 2, 300]), torch.tensor([1.25, 2.75, 400])], [x0, x1, encode(n)],
           lambda x, y, n=n: torch.isclose(x.float(), y, n))

# Options that no float32 holds, forward and backward in float64; and NaN as one.
d = torch.tensor([-1.7, -0.3, 0.2, 1.9], dtype=torch.float64)
p = torch.tensor([0.3, 0.6, 0.2, 0.9], dtype=torch.float64)
options = {
    "leaky_relu": (1, lambda n: [x0, encode(n)], lambda x, n: F.leaky_relu(x, n)),
    "elu": (1, lambda n: [x0, encode(n)], lambda x, n: F.elu(x, n)),
    "celu": (1, lambda n: [x0, encode(n)], lambda x, n: F.celu(x, n)),
    "hardtanh": (1, lambda n: [x0, {"nil": True}, encode(n)], lambda x, n: F.hardtanh(x, -1, n)),
    "hardshrink": (1, lambda n: [x0, encode(n)], lambda x, n: F.hardshrink(x, n)),
    "softshrink": (1, lambda n: [x0, encode(n)], lambda x, n: F.softshrink(x, n)),
    "threshold": (1, lambda n: [x0, encode(n), encode(0.7)], lambda x, n: F.threshold(x, n, 0.7)),
    "logit": (1, lambda n: [x0, encode(n)], lambda x, n: torch.logit(x, n)),
    "nan_to_num": (1, lambda n: [x0, encode(n)], lambda x, n: torch.nan_to_num(x, n)),
    "polygamma": (1, lambda n: [x0, encode(n)], lambda x, n: torch.polygamma(n, x)),
    "softplus": (1, lambda n: [x0, {"options": {"beta": encode(n)}}], lambda x, n: F.softplus(x, n)),
    "clamp": (1, lambda n: [x0, {"nil": True}, encode(n)], lambda x, n: x.clamp(max=n)),
    "masked_fill": (0, None, None),
    "var": (1, lambda n: [x0, {"nil": True}, {"options": {"correction": encode(n)}}], lambda x, n: x.var(None, correction=n)),
    "std": (1, lambda n: [x0, {"nil": True}, {"options": {"correction": encode(n)}}], lambda x, n: x.std(None, correction=n)),
    "norm": (1, lambda n: [x0, encode(n)], lambda x, n: torch.linalg.vector_norm(x, n)),
    "layer_norm": (1, lambda n: [x0, [4], {"options": {"eps": encode(n)}}], lambda x, n: F.layer_norm(x, (4,), eps=n)),
    "rms_norm": (1, lambda n: [x0, [4], {"options": {"eps": encode(n)}}], lambda x, n: F.rms_norm(x, (4,), eps=n)),
    "addcmul": (3, lambda n: [x0, x1, x2, {"options": {"value": encode(n)}}], lambda x, y, z, n: torch.addcmul(x, y, z, value=n)),
    "addcdiv": (3, lambda n: [x0, x1, x2, {"options": {"value": encode(n)}}], lambda x, y, z, n: torch.addcdiv(x, y, z, value=n)),
    "lerp": (2, lambda n: [x0, x1, encode(n)], lambda x, y, n: torch.lerp(x, y, n)),
    "smooth_l1_loss": (2, lambda n: [x0, x1, {"options": {"beta": encode(n)}}], lambda x, y, n: F.smooth_l1_loss(x, y, beta=n)),
    "add_layer_norm": (2, lambda n: [x0, x1, [4], {"options": {"eps": encode(n)}}], lambda x, y, n: (F.layer_norm(x + y, (4,), eps=n), x + y)),
}
options |= {
    "trapezoid": (1, lambda n: [x0, {"options": {"dx": encode(n)}}], lambda y, n: torch.trapezoid(y, dx=n)),
    "var_mean": (1, lambda n: [x0, {"nil": True}, {"options": {"correction": encode(n)}}],
                 lambda x, n: torch.var_mean(x, None, correction=n)),
    "std_mean": (1, lambda n: [x0, {"nil": True}, {"options": {"correction": encode(n)}}],
                 lambda x, n: torch.std_mean(x, None, correction=n)),
    "dist": (2, lambda n: [x0, x1, encode(n)], lambda x, y, n: torch.dist(x, y, n)),
    "quantile": (1, lambda n: [x0, encode(n)], lambda x, n: x.quantile(n)),
    "nanquantile": (1, lambda n: [x0, encode(n)], lambda x, n: x.nanquantile(n)),
}
s = torch.tensor(0.7)
for other in (s, s.double()):
    record("lerp", "0-d", [d, p, other], [x0, x1, x2], torch.lerp if other.dtype == torch.float64 else lambda x, y, z: torch.lerp(x, y, z.double()), 0)
    record("lerp", "0-d", [d, p, other], [x0, x1, x2], torch.lerp if other.dtype == torch.float64 else lambda x, y, z: torch.lerp(x, y, z.double()), 1)
    record("addcdiv", "0-d", [d, p, other], [x0, x1, x2], torch.addcdiv, 1)
    record("addcdiv", "0-d", [d, other, p], [x0, x1, x2], torch.addcdiv, 2)
    record("masked_fill", "0-d", [d, torch.tensor(True)], [x0, x1, encode(0.3)], lambda x, m: x.masked_fill(m, 0.3), 0)
for name, (count, args, fn) in options.items():
    if count == 0:
        continue
    inputs = [d, p, p + 0.7][:count]
    for n in (0.3, nan):
        for by in range(count):
            record(name, "nan" if n != n else "number", inputs, args(n), lambda *xs, n=n, fn=fn: fn(*xs, n), by)
a, b, c = torch.linspace(-1, 1, 4).double().reshape(2, 2), torch.linspace(0.1, 2, 4).double().reshape(2, 2), torch.tensor([[0.3, 0.7], [1.1, -0.2]]).double()
for n in (0.3, nan):
    kind = "nan" if n != n else "number"
    for by in range(3):
        record("addmm", kind, [a, b, c], [x0, x1, x2, {"options": {"beta": encode(n), "alpha": encode(0.7)}}],
               lambda x, y, z, n=n: torch.addmm(x, y, z, beta=n, alpha=0.7), by)
        record("baddbmm", kind, [a[None], b[None], c[None]], [x0, x1, x2, {"options": {"beta": encode(0.7), "alpha": encode(n)}}],
               lambda x, y, z, n=n: torch.baddbmm(x, y, z, beta=0.7, alpha=n), by)
        record("addmv", kind, [a[0], b, c[0]], [x0, x1, x2, {"options": {"beta": encode(n), "alpha": encode(0.7)}}],
               lambda x, y, z, n=n: torch.addmv(x, y, z, beta=n, alpha=0.7), by)
        record("addr", kind, [a, b[0], c[0]], [x0, x1, x2, {"options": {"beta": encode(0.7), "alpha": encode(n)}}],
               lambda x, y, z, n=n: torch.addr(x, y, z, beta=0.7, alpha=n), by)
        record("addbmm", kind, [a, b[None], c[None]], [x0, x1, x2, {"options": {"beta": encode(n), "alpha": encode(0.7)}}],
               lambda x, y, z, n=n: torch.addbmm(x, y, z, beta=n, alpha=0.7), by)
    index = torch.tensor([1])
    record("index_fill", kind, [a, index], [x0, 1, x1, encode(n)], lambda x, i, n=n: x.index_fill(0, i, n), 0)
    record("scatter", kind, [a, index[None]], [x0, 1, x1, encode(n)], lambda x, i, n=n: x.scatter(0, i, n), 0)
    record("cross_entropy", kind, [a, torch.tensor([1, 0])], [x0, x1, {"options": {"label_smoothing": encode(n)}}],
           lambda x, t, n=n: F.cross_entropy(x, t, label_smoothing=n), 0)
    record("binary_cross_entropy_with_logits", kind, [a, b / 3], [x0, x1, {"options": {"pos_weight": encode(n)}}],
           lambda x, t, n=n: F.binary_cross_entropy_with_logits(x, t, pos_weight=torch.tensor(n, dtype=torch.float64)), 0)
    q = torch.linspace(-1, 1, 8).double().reshape(1, 1, 4, 2)
    record("scaled_dot_product_attention", kind, [q, q * 0.7, q + 0.3], [x0, x1, x2, {"options": {"scale": encode(n)}}],
           lambda q, k, v, n=n: F.scaled_dot_product_attention(q, k, v, scale=n), 0)
    record("batch_norm", kind, [b], [x0, {"options": {"training": True, "eps": encode(n)}}],
           lambda x, n=n: F.batch_norm(x, None, None, training=True, eps=n), 0)
    record("group_norm", kind, [b], [x0, 2, {"options": {"eps": encode(n)}}], lambda x, n=n: F.group_norm(x, 2, eps=n), 0)

# The options of losses and distances: a name, inputs, those to differentiate by, arguments and PyTorch's form of each number.
signs, classes = torch.tensor([1.0, -1, 1, -1]).double(), torch.tensor([1, 0])
focal, dice = importlib.import_module("cases.loss").focal, importlib.import_module("cases.loss").dice
for n in (0.3, nan):
    def option(op, inputs, by, args, fn, n=n):
        for i in by:
            record(op, "nan" if n != n else "number", inputs, args, fn, i)

    def named(name, n=n, **others):
        return {"options": {name: encode(n)} | {k: encode(v) for k, v in others.items()}}

    option("huber_loss", [d, p], (0, 1), [x0, x1, named("delta")], lambda x, t, n=n: F.huber_loss(x, t, delta=n))
    option("hinge_embedding_loss", [d, signs], (0,), [x0, x1, named("margin")], lambda x, t, n=n: F.hinge_embedding_loss(x, t, n))
    option("margin_ranking_loss", [d, p, signs], (0, 1), [x0, x1, x2, named("margin")], lambda x, y, t, n=n: F.margin_ranking_loss(x, y, t, n))
    option("triplet_margin_loss", [a, b, c], (0, 1, 2), [x0, x1, x2, named("margin", eps=0.3, p=2.5)],
           lambda x, y, z, n=n: F.triplet_margin_loss(x, y, z, n, 2.5, 0.3))
    option("cosine_embedding_loss", [a, b, signs[:2]], (0, 1), [x0, x1, x2, named("margin")], lambda x, y, t, n=n: F.cosine_embedding_loss(x, y, t, n))
    option("poisson_nll_loss", [p, p + 0.7], (0, 1), [x0, x1, named("eps", log_input=False)],
           lambda x, t, n=n: F.poisson_nll_loss(x, t, log_input=False, eps=n))
    option("gaussian_nll_loss", [d, p], (0, 1), [x0, x1, encode(n)], lambda x, t, n=n: F.gaussian_nll_loss(x, t, n))
    option("multi_margin_loss", [a, classes], (0,), [x0, x1, named("margin")], lambda x, t, n=n: F.multi_margin_loss(x, t, margin=n))
    option("sigmoid_focal_loss", [d, p], (0, 1), [x0, x1, named("gamma", alpha=0.3)], lambda x, t, n=n: focal(x, t, 0.3, n))
    option("dice_loss", [b, c], (0, 1), [x0, x1, named("smooth")], lambda x, t, n=n: dice(x, t, n).mean())
    option("cosine_similarity", [a, b], (0, 1), [x0, x1, 2, named("eps")], lambda x, y, n=n: F.cosine_similarity(x, y, 1, n))
    option("pairwise_distance", [a, b], (0, 1), [x0, x1, encode(n)], lambda x, y, n=n: F.pairwise_distance(x, y, n))
    option("cdist", [a, b], (0, 1), [x0, x1, encode(n)], lambda x, y, n=n: torch.cdist(x, y, n))
    option("normalize", [a], (0,), [x0, encode(n)], lambda x, n=n: F.normalize(x, n))
# ====}

def rows_of(family):
    """The records of a family's ops; those of one op and kind are numbered."""
    counts = collections.Counter()
    for r in records:
        if family_of[r["op"]] == family:
            key = f'{r["op"]} ({r["kind"]})'
            counts[key] += 1
            yield {"name": f"{key} {counts[key]:02}"} | r


if __name__ == "__main__":
    lines.main("operands", cases.FAMILIES, rows_of)
