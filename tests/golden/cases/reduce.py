"""Cases of the reduce family."""
import torch
import torch.nn.functional as F

from . import case, distinct, flags, ints, rand, x0

for name, f in [("sum", torch.sum), ("mean", torch.mean)]:
    case(name, [rand(3, 4, 5)], [x0], f)
    case(name, [rand(3, 4, 5)], [x0, 1], lambda x, f=f: f(x, 0), tag="first dim")
    case(name, [rand(3, 4, 5)], [x0, -1, {"keepdim": True}], lambda x, f=f: f(x, -1, keepdim=True), tag="last dim, kept")
    case(name, [rand(3, 4, 5)], [x0, [1, 3]], lambda x, f=f: f(x, (0, 2)), tag="two dims")
case("sum", [rand(0, 3)], [x0, 1], lambda x: x.sum(0), tag="empty")
case("sum", [ints(3, 4, high=9)], [x0, 2], lambda x: x.sum(1), grad=[], tag="integers")
case("sum", [rand(90, 50)], [x0], torch.sum, tag="long", growth=8)
case("sum", [rand(90, 50)], [x0, 1], lambda x: x.sum(0), tag="columns", growth=8)
case("prod", [rand(3, 4, away=0.5)], [x0], torch.prod, growth=16)
case("prod", [rand(3, 4, away=0.5)], [x0, 2], lambda x: x.prod(1), growth=8, tag="rows")
for c in (0, 1):
    case("var", [rand(3, 6)], [x0, 2, {"correction": c}], lambda x, c=c: x.var(1, correction=c), growth=8, tag=f"correction {c}")
    case("std", [rand(3, 6)], [x0, 2, {"correction": c}], lambda x, c=c: x.std(1, correction=c), growth=8, tag=f"correction {c}")
case("var", [rand(3, 6)], [x0], lambda x: x.var(), growth=8)
case("std", [rand(3, 6)], [x0, 1, {"keepdim": True}], lambda x: x.std(0, keepdim=True), growth=8, tag="kept")
case("amax", [distinct(3, 5)], [x0, 2], lambda x: x.amax(1))
case("amin", [distinct(3, 5)], [x0, [1, 2]], lambda x: x.amin((0, 1)))
case("max", [distinct(3, 5)], [x0], torch.max)
case("min", [distinct(3, 5)], [x0], torch.min)
case("max", [distinct(3, 5)], [x0, 1], lambda x: tuple(x.max(0)), tag="first dim")
case("min", [distinct(3, 5)], [x0, -1, {"keepdim": True}], lambda x: tuple(x.min(1, keepdim=True)), tag="last dim, kept")
case("argmax", [distinct(3, 5)], [x0], torch.argmax, grad=[])
case("argmax", [distinct(3, 5)], [x0, -1], lambda x: x.argmax(-1), grad=[], tag="last dim")
case("argmin", [distinct(3, 5)], [x0, 1, {"keepdim": True}], lambda x: x.argmin(0, keepdim=True), grad=[])
for power in (1, 2, 3):
    case("norm", [rand(3, 4, away=0.5)], [x0, power], lambda x, n=power: x.norm(n), growth=8, tag=f"p = {power}")
case("norm", [rand(3, 4, away=0.5)], [x0, 2, 2], lambda x: x.norm(2, 1), growth=8, tag="rows")
case("logsumexp", [rand(3, 4)], [x0, 2], lambda x: x.logsumexp(1))
case("logsumexp", [rand(3, 4)], [x0, 1, {"keepdim": True}], lambda x: x.logsumexp(0, keepdim=True), tag="kept")
case("all", [flags(3, 4)], [x0], torch.all, grad=[])
case("all", [flags(3, 4)], [x0, 1], lambda x: x.all(0), grad=[], tag="first dim")
case("any", [flags(3, 4)], [x0], torch.any, grad=[])
case("any", [flags(3, 4)], [x0, 2, {"keepdim": True}], lambda x: x.any(1, keepdim=True), grad=[], tag="kept")
case("cumsum", [rand(3, 5)], [x0, 2], lambda x: x.cumsum(1), growth=8)
case("cumsum", [rand(3, 5)], [x0, 1], lambda x: x.cumsum(0), growth=8, tag="first dim")
for name, f in [("softmax", F.softmax), ("log_softmax", F.log_softmax)]:
    case(name, [rand(3, 5)], [x0, -1], lambda x, f=f: f(x, -1))
    case(name, [rand(3, 5, 4)], [x0, 2], lambda x, f=f: f(x, 1), tag="inner dim")
    case(name, [rand(2, 130)], [x0, 2], lambda x, f=f: f(x, 1), tag="long")
