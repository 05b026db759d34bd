"""Cases of the elementwise family."""
import math

import torch
import torch.nn.functional as F

from . import case, distinct, flags, ints, rand, x0, x1, x2



class Polygamma(torch.autograd.Function):
    """By zeta: PyTorch's own trigamma, and with it the gradient of digamma, is right to ten digits only."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return torch.digamma(x) if n == 0 else (-1) ** (n + 1) * math.factorial(n) * torch.special.zeta(n + 1, x)

    @staticmethod
    def backward(ctx, grad):
        return grad * Polygamma.apply(*ctx.saved_tensors, ctx.n + 1), None


for name, f in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div)]:
    case(name, [rand(3, 4), rand(3, 4, away=0.5)], [x0, x1], f)
    case(name, [rand(2, 1, 4), rand(3, 1, away=0.5)], [x0, x1], f, tag="broadcast")
    case(name, [rand(3, 4)], [x0, 1.5], lambda x, f=f: f(x, 1.5), tag="number")
    case(name, [rand(1), rand(1, 1, away=0.5)], [x0, x1], f, tag="size one")
    case(name, [rand(0, 4), rand(4, away=0.5)], [x0, x1], f, tag="empty")
case("div", [ints(4, high=9), ints(4, high=5) + 1], [x0, x1], lambda a, b: (a / b).float(), grad=[], tag="integers")
case("sub", [rand(3)], [2.0, x0], lambda x: 2.0 - x, tag="number first")
for name, f in [("add", torch.add), ("sub", torch.sub)]:
    case(name, [rand(3, 4), rand(4)], [x0, x1, {"alpha": -1.5}], lambda x, y, f=f: f(x, y, alpha=-1.5), tag="alpha")
    case(name, [ints(5, high=9), ints(5, high=9)], [x0, x1, {"alpha": 3}], lambda x, y, f=f: f(x, y, alpha=3), grad=[],
         tag="alpha, integers")
for how in ("trunc", "floor"):
    case("div", [rand(6) + 1 / 32, rand(6, away=0.5)], [x0, x1, {"rounding_mode": how}],
         lambda x, y, how=how: torch.div(x, y, rounding_mode=how), grad=[], tag=how)
    case("div", [ints(9, high=9) - 4, ints(9, high=3) - 4], [x0, x1, {"rounding_mode": how}],
         lambda x, y, how=how: torch.div(x, y, rounding_mode=how), grad=[], tag=how + ", integers")
for d in (1, -1):
    case("round", [rand(4, 5).map(lambda x: 16 * x + 1 / 32)], [x0, {"decimals": d}], lambda x, d=d: torch.round(x, decimals=d),
         grad=[], growth=4, tag=f"decimals {d}")
for name, f in [("gcd", torch.gcd), ("lcm", torch.lcm)]:
    case(name, [ints(4, 5, high=60) - 30, ints(5, high=60) - 30], [x0, x1], f, grad=[])
    case(name, [ints(4, high=1), ints(4, high=2)], [x0, x1], f, grad=[], tag="zeros")
for name, f in [("bitwise_left_shift", torch.bitwise_left_shift), ("bitwise_right_shift", torch.bitwise_right_shift)]:
    case(name, [ints(4, 5, high=200) - 100, ints(5, high=7)], [x0, x1], f, grad=[])
case("floor_divide", [rand(5), rand(5, away=0.5)], [x0, x1], torch.floor_divide, grad=[])
case("floor_divide", [ints(6, high=9) - 4, ints(6, high=3) + 1], [x0, x1], torch.floor_divide, grad=[], tag="integers")
# Every kind of number over every kind, as every dtype holds it.
kinds = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1.0, -1.0, 0.0625, -3.0, 3072.0, -3072.0, 0.4375],
                     dtype=torch.float64)
case("floor_divide", [kinds.view(-1, 1), kinds], [x0, x1], torch.floor_divide, grad=[], tag="special values")
case("div", [kinds.view(-1, 1), kinds], [x0, x1, {"rounding_mode": "floor"}],
     lambda x, y: torch.div(x, y, rounding_mode="floor"), grad=[], tag="floor, special values")
case("remainder", [rand(6) + 1 / 32, rand(6, away=0.5)], [x0, x1], torch.remainder, grad=[0])  # no multiple, where it jumps
case("pow", [rand(3, 4, low=0.5, high=3), rand(4)], [x0, x1], torch.pow)
case("pow", [rand(3, 4, away=0.5)], [x0, 3], lambda x: x**3, tag="number")
case("pow", [rand(3, low=0.5)], [2.0, x0], lambda x: 2.0**x, tag="base number")
case("maximum", [distinct(4, 5), distinct(4, 5) + 1 / 32], [x0, x1], torch.maximum)
case("minimum", [distinct(4, 5), distinct(4, 5) + 1 / 32], [x0, x1], torch.minimum)
case("atan2", [rand(3, 4, away=0.25), rand(4, away=0.25)], [x0, x1], torch.atan2)
for name, f, low, high in [
    ("neg", torch.neg, -2, 2), ("abs", torch.abs, -2, 2), ("exp", torch.exp, -2, 2), ("expm1", torch.expm1, -2, 2),
    ("log", torch.log, 0.25, 3), ("log2", torch.log2, 0.25, 3), ("log10", torch.log10, 0.25, 3),
    ("log1p", torch.log1p, -0.5, 3), ("sqrt", torch.sqrt, 0.25, 3), ("rsqrt", torch.rsqrt, 0.25, 3),
    ("square", torch.square, -2, 2), ("reciprocal", torch.reciprocal, 0.5, 3),
    ("sin", torch.sin, -2, 2), ("cos", torch.cos, -2, 2), ("tan", torch.tan, -1, 1), ("tanh", torch.tanh, -2, 2),
    ("erf", torch.erf, -2, 2), ("erfinv", torch.erfinv, -0.9, 0.9), ("erfc", torch.erfc, -2, 2),
    ("exp2", torch.exp2, -2, 2), ("asin", torch.asin, -0.9, 0.9), ("acos", torch.acos, -0.9, 0.9),
    ("atan", torch.atan, -2, 2), ("sinh", torch.sinh, -2, 2), ("cosh", torch.cosh, -2, 2),
    ("asinh", torch.asinh, -2, 2), ("acosh", torch.acosh, 1.25, 4), ("atanh", torch.atanh, -0.9, 0.9),
    ("sinc", torch.sinc, -2, 2), ("lgamma", torch.lgamma, 0.25, 4), ("digamma", lambda x: Polygamma.apply(x, 0), 0.25, 4),
    ("i0", torch.i0, -2, 2), ("logit", torch.logit, 0.125, 0.875), ("positive", torch.positive, -2, 2),
    ("deg2rad", torch.deg2rad, -2, 2), ("rad2deg", torch.rad2deg, -2, 2), ("selu", F.selu, -2, 2),
    ("celu", F.celu, -2, 2), ("mish", F.mish, -2, 2), ("softsign", F.softsign, -2, 2),
    ("logsigmoid", F.logsigmoid, -2, 2), ("tanhshrink", F.tanhshrink, -2, 2),
    ("sigmoid", torch.sigmoid, -2, 2), ("relu", torch.relu, -2, 2), ("silu", F.silu, -2, 2),
    ("softplus", F.softplus, -2, 2), ("elu", F.elu, -2, 2), ("leaky_relu", F.leaky_relu, -2, 2), ("gelu", F.gelu, -2, 2),
]:
    case(name, [rand(3, 5, low=low, high=high, away=0.25 if low < 0 else None)], [x0], f)
    case(name, [rand(0, low=low, high=high)], [x0], f, tag="empty")
    case(name, [rand(1, 1, low=low, high=high, away=0.25 if low < 0 else None)], [x0], f, tag="size one")
for name, f in [("sign", torch.sign), ("floor", torch.floor), ("ceil", torch.ceil), ("round", torch.round),
                ("trunc", torch.trunc)]:
    case(name, [rand(4, 5)], [x0], f, grad=[])
for name, f in [("frac", torch.frac), ("relu6", F.relu6), ("hardtanh", F.hardtanh),
                ("hardsigmoid", lambda x: F.relu6(x + 3) / 6),  # its own gradient takes 1 / 6 in float32
               
                ("hardswish", F.hardswish), ("softshrink", F.softshrink), ("hardshrink", F.hardshrink)]:
    case(name, [rand(4, 5, low=-3.9, high=3.9) + 1 / 32], [x0], f)  # beside the kinks
case("relu6", [rand(3, 5, low=-1, high=3).map(lambda x: 3 * x + 1 / 32)], [x0], F.relu6, tag="to 9")
case("hardtanh", [rand(3, 5) + 1 / 32], [x0, -0.5, 1.25], lambda x: F.hardtanh(x, -0.5, 1.25), tag="bounds")
case("softshrink", [rand(3, 5) + 1 / 32], [x0, 1.25], lambda x: F.softshrink(x, 1.25), tag="lambd")
case("hardshrink", [rand(3, 5) + 1 / 32], [x0, 1.25], lambda x: F.hardshrink(x, 1.25), tag="lambd")
case("threshold", [rand(3, 5) + 1 / 32], [x0, 0.5, -1.5], lambda x: F.threshold(x, 0.5, -1.5))
case("celu", [rand(3, 5, away=0.25)], [x0, 0.5], lambda x: F.celu(x, 0.5), tag="alpha")
case("logit", [rand(3, 5, low=0.0, high=1) + 1 / 32], [x0, 0.25], lambda x: torch.logit(x, 0.25), tag="eps")
case("lgamma", [rand(3, 5, low=-3.9, high=-0.1).map(lambda x: torch.where(x == x.round(), x + 0.5, x))], [x0], torch.lgamma,
     growth=16, tag="negative")
case("digamma", [rand(3, 5, low=-3.9, high=-0.1).map(lambda x: torch.where(x == x.round(), x + 0.5, x))], [x0], lambda x: Polygamma.apply(x, 0),
     growth=16, tag="negative")
for n in (1, 2, 4):
    case("polygamma", [rand(3, 5, low=0.5, high=3.9)], [x0, n], lambda x, n=n: Polygamma.apply(x, n), tag=f"order {n}")
case("i0", [rand(3, 5, low=-3.9, high=3.9, away=0.25).map(lambda x: 2.5 * x)], [x0], torch.i0, tag="to 10")
for name, f in [("igamma", torch.igamma), ("igammac", torch.igammac)]:
    case(name, [rand(3, 4, low=0.25, high=3.9), rand(4, low=0.25, high=3.9)], [x0, x1], f, grad=[1], growth=16)
    # from 20 on PyTorch's are right to nine digits where the arguments are near to each other; see made.py
    case(name, [rand(3, 5, low=1, high=2.4).map(lambda x: 8 * x), rand(3, 5, low=1, high=3.9).map(lambda x: 8 * x)], [x0, x1], f,
         grad=[1], growth=64, tag="larger")
case("fmod", [rand(6) + 1 / 32, rand(6, away=0.5)], [x0, x1], torch.fmod)  # no multiple, where it jumps
case("fmod", [ints(6, high=9) - 4, ints(6, high=3) + 1], [x0, x1], torch.fmod, grad=[], tag="integers")
for name, f in [("fmax", torch.fmax), ("fmin", torch.fmin)]:
    case(name, [distinct(4, 5), distinct(4, 5) + 1 / 32], [x0, x1], f)
for name, f in [("hypot", torch.hypot), ("logaddexp", torch.logaddexp), ("logaddexp2", torch.logaddexp2),
                ("copysign", torch.copysign)]:
    case(name, [rand(3, 4, away=0.25), rand(4, away=0.25)], [x0, x1], f)
case("copysign", [rand(3, 4, away=0.25)], [x0, -1.0], lambda x: torch.copysign(x, -1.0), tag="number")
for name, f, low in [("xlogy", torch.xlogy, 0.25), ("xlog1py", torch.special.xlog1py, -0.5)]:
    case(name, [rand(3, 4, away=0.25), rand(4, low=low, high=3)], [x0, x1], f)
    case(name, [torch.tensor([0.0, 0.0, 1.5], dtype=torch.float64), rand(3, low=0.25, high=3)], [x0, x1], f, grad=[1], tag="zeros")
    case(name, [rand(3, low=low, high=3)], [2.0, x0], lambda y, f=f: f(2.0, y), tag="number")
case("heaviside", [rand(4, 5, low=-0.25, high=0.25), rand(5)], [x0, x1], torch.heaviside, grad=[])
case("gelu", [rand(3, 5)], [x0, {"approximate": "tanh"}], lambda x: F.gelu(x, approximate="tanh"), tag="tanh")
case("leaky_relu", [rand(3, 5, away=0.25)], [x0, 0.25], lambda x: F.leaky_relu(x, 0.25), tag="slope")
case("elu", [rand(3, 5, away=0.25)], [x0, 0.5], lambda x: F.elu(x, 0.5), tag="alpha")
case("softplus", [rand(3, 5)], [x0, {"beta": 2.0}], lambda x: F.softplus(x, 2.0), tag="beta")
case("clamp", [rand(4, 5, away=0.25)], [x0, -1.03125, 1.03125], lambda x: x.clamp(-1.03125, 1.03125))
case("clamp", [rand(4, 5, low=-3.9, high=3.9) + 1 / 64, rand(5, low=-2, high=-1), rand(4, 1, low=0, high=2) + 1 / 32], [x0, x1, x2],
     lambda x, low, high: x.clamp(low, high), tag="tensors")
case("clamp", [rand(4, 5) + 1 / 32, rand(4, 5)], [x0, x1], lambda x, low: x.clamp(low), tag="least")
case("clamp", [rand(4, 5) + 1 / 32, rand(5)], [x0, None, x1], lambda x, high: x.clamp(max=high), tag="most")
case("clamp", [rand(4, 5) + 1 / 32, rand(5, low=-2, high=0)], [x0, x1, 1.0],
     lambda x, low: x.clamp(low, torch.tensor(1.0, dtype=x.dtype)), tag="a tensor and a number")
case("lerp", [rand(3, 4), rand(3, 4)], [x0, x1, 0.25], lambda x, y: torch.lerp(x, y, 0.25))
case("lerp", [rand(3, 4), rand(3, 4), rand(4)], [x0, x1, x2], torch.lerp, tag="tensor")
case("addcmul", [rand(3, 4), rand(4), rand(3, 1)], [x0, x1, x2, {"value": 0.5}],
     lambda x, y, z: torch.addcmul(x, y, z, value=0.5))
case("addcdiv", [rand(3, 4), rand(4), rand(3, 1, away=0.5)], [x0, x1, x2, {"value": 0.5}],
     lambda x, y, z: torch.addcdiv(x, y, z, value=0.5))
case("where", [flags(3, 4), rand(3, 4), rand(4)], [x0, x1, x2], torch.where)
case("where", [flags(3, 4), rand(3, 4)], [x0, x1, 0.5], lambda c, x: torch.where(c, x, 0.5), tag="number")
case("masked_fill", [rand(3, 4), flags(3, 4)], [x0, x1, -1.5], lambda x, k: x.masked_fill(k, -1.5))
for name, f in [("eq", torch.eq), ("ne", torch.ne), ("lt", torch.lt), ("le", torch.le), ("gt", torch.gt), ("ge", torch.ge)]:
    case(name, [rand(4, 5, low=-0.25, high=0.25), rand(5, low=-0.25, high=0.25)], [x0, x1], f, grad=[])
for name, f in [("logical_and", torch.logical_and), ("logical_or", torch.logical_or), ("logical_xor", torch.logical_xor),
                ("bitwise_and", torch.bitwise_and), ("bitwise_or", torch.bitwise_or), ("bitwise_xor", torch.bitwise_xor)]:
    case(name, [flags(5), flags(5)], [x0, x1], f, grad=[])
for name, f in [("bitwise_and", torch.bitwise_and), ("bitwise_or", torch.bitwise_or), ("bitwise_xor", torch.bitwise_xor)]:
    case(name, [ints(5, high=100), ints(5, high=100)], [x0, x1], f, grad=[], tag="integers")
case("logical_not", [flags(5)], [x0], torch.logical_not, grad=[])
case("bitwise_not", [ints(5, high=100)], [x0], torch.bitwise_not, grad=[])
special = torch.tensor([1.0, float("inf"), float("-inf"), float("nan"), 0.0], dtype=torch.float64)
for name, f in [("isnan", torch.isnan), ("isinf", torch.isinf), ("isfinite", torch.isfinite),
                ("isposinf", torch.isposinf), ("isneginf", torch.isneginf)]:
    case(name, [special], [x0], f, grad=[])
case("signbit", [torch.tensor([1.0, -2.0, 0.0, -0.0, float("-inf")], dtype=torch.float64)], [x0], torch.signbit, grad=[])
case("dropout", [rand(3, 4)], [x0, 0.5, False], lambda x: x, tag="evaluation")
case("dropout", [rand(3, 4)], [x0, 0.0, True], lambda x: x, tag="p = 0")
for k in (-1, 0, 2):
    case("tril", [rand(2, 4, 5)], [x0, k], lambda x, k=k: x.tril(k), tag=f"diagonal {k}")
    case("triu", [rand(2, 4, 5)], [x0, k], lambda x, k=k: x.triu(k), tag=f"diagonal {k}")
