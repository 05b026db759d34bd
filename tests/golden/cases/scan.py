"""Cases of the scan family."""
import torch

from . import case, distinct, ints, rand, x0

case("cumprod", [rand(3, 5)], [x0, 2], lambda x: x.cumprod(1), growth=32)
case("cumprod", [rand(5, 3, low=-0.25, high=0.25)], [x0, 1], lambda x: x.cumprod(0), growth=32, tag="zeros")
case("logcumsumexp", [rand(3, 5)], [x0, 2], lambda x: x.logcumsumexp(1), growth=16)
case("cummax", [distinct(3, 6)], [x0, 2], lambda x: tuple(x.cummax(1)), growth=8)
case("cummax", [ints(7, 3, high=3)], [x0, 1], lambda x: tuple(x.cummax(0)), grad=[], tag="equal")
case("cummin", [distinct(6, 3)], [x0, 1], lambda x: tuple(x.cummin(0)), growth=8)
