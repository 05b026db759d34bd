"""Cases of gated units, and of others made of elementwise ops."""
import torch
import torch.nn.functional as F

from . import case, ints, rand, x0, x1


def halves(x, dim=-1):
    return x.chunk(2, dim)


for name, f in [("glu", F.glu), ("swiglu", lambda x, dim=-1: F.silu(halves(x, dim)[0]) * halves(x, dim)[1]),
                ("geglu", lambda x, dim=-1: F.gelu(halves(x, dim)[0]) * halves(x, dim)[1])]:
    case(name, [rand(3, 6)], [x0], f)
    case(name, [rand(4, 3)], [x0, 1], lambda x, f=f: f(x, 0), tag="dim")
    case(name, [rand(3, 0)], [x0], f, tag="empty")
case("prelu", [rand(3, 4, away=0.25), rand(1)], [x0, x1], F.prelu)
case("prelu", [rand(3, 4, away=0.25), rand(4)], [x0, x1], F.prelu, tag="channels", growth=8)
case("prelu", [rand(2, 3, 2, 4, away=0.25), rand(3)], [x0, x1], F.prelu, tag="channels of images", growth=16)
case("prelu", [rand(5, away=0.25), rand(1)], [x0, x1], F.prelu, tag="one dim")
for d in (-1, 1):
    case("softmin", [rand(3, 5)], [x0, d], lambda x, d=d: F.softmin(x, d if d < 0 else d - 1), tag=f"dim {d}", growth=8)
case("softmin", [ints(3, 5, high=4)], [x0, -1, {"dtype": "float64"}], lambda x: F.softmin(x, -1, dtype=torch.float64),
     grad=[], tag="dtype", growth=8)
special = torch.tensor([1.0, float("inf"), float("-inf"), float("nan"), -0.5], dtype=torch.float64)
case("nan_to_num", [rand(3, 4)], [x0], torch.nan_to_num)
case("nan_to_num", [special], [x0, 0.5, 2.0, -3.0], lambda x: torch.nan_to_num(x, 0.5, 2.0, -3.0), tag="replaced")
case("isclose", [rand(4, 5, low=0, high=0.25), rand(4, 5, low=0, high=0.25)], [x0, x1], torch.isclose, grad=[])
case("isclose", [rand(4, 5), rand(4, 5)], [x0, x1, 0.25, 0.5], lambda x, y: torch.isclose(x, y, 0.25, 0.5), grad=[], tag="tolerances")
case("isclose", [special, special.flip(0)], [x0, x1, {"equal_nan": True}], lambda x, y: torch.isclose(x, y, equal_nan=True), grad=[],
     tag="equal NaN")
