"""Cases of the order family."""
import torch

from . import case, distinct, ints, rand, x0, x1, x2

case("argsort", [distinct(3, 6)], [x0], torch.argsort, grad=[])
case("argsort", [distinct(3, 6)], [x0, 1, {"descending": True}], lambda x: x.argsort(0, descending=True), grad=[],
     tag="descending")
case("msort", [distinct(5, 3)], [x0], torch.msort)
case("kthvalue", [distinct(3, 6)], [x0, 2], lambda x: tuple(x.kthvalue(2)))
case("kthvalue", [distinct(6, 3)], [x0, 5, 1, {"keepdim": True}], lambda x: tuple(x.kthvalue(5, 0, True)), tag="kept")
case("median", [distinct(3, 6)], [x0, 2], lambda x: tuple(x.median(1)))
case("median", [distinct(3, 6)], [x0], lambda x: x.median(), tag="all")
case("nanmedian", [distinct(3, 6)], [x0, 2, {"keepdim": True}], lambda x: tuple(x.nanmedian(1, True)))
case("nanmedian", [distinct(3, 6)], [x0], lambda x: x.nanmedian(), tag="all")
case("mode", [distinct(3, 6)], [x0], lambda x: tuple(x.mode()))
case("mode", [ints(7, 3, high=3)], [x0, 1, {"keepdim": True}], lambda x: tuple(x.mode(0, True)), grad=[], tag="equal")
case("quantile", [distinct(3, 6)], [x0, 0.375, 2], lambda x: x.quantile(0.375, 1), growth=8)
case("quantile", [distinct(3, 6), torch.tensor([0.25, 0.75, 1.0], dtype=torch.float64)], [x0, x1, 1, {"keepdim": True}],
     lambda x, q: x.quantile(q.to(x.dtype), 0, True), grad=[0], growth=8, tag="several")
for how in ("lower", "higher", "nearest", "midpoint"):
    case("quantile", [distinct(3, 6)], [x0, 0.3125, {"interpolation": how}],
         lambda x, how=how: x.quantile(0.3125, interpolation=how), growth=8, tag=how)
case("nanquantile", [distinct(3, 6)], [x0, 0.375, 2], lambda x: x.nanquantile(0.375, 1), growth=8)
line = torch.tensor([-1.5, -0.5, 0.0, 0.5, 1.25], dtype=torch.float64)
case("searchsorted", [line, rand(3, 4)], [x0, x1], torch.searchsorted, grad=[])
case("searchsorted", [torch.stack([line, line * 2]), rand(2, 4)], [x0, x1, {"right": True}],
     lambda x, v: torch.searchsorted(x, v, right=True), grad=[], tag="rows, right")
case("searchsorted", [line.flip(0), rand(3, 4), torch.arange(line.numel()).flip(0)],
     [x0, x1, x2, {"side": "right", "out_int32": True}],
     lambda x, v, s: torch.searchsorted(x, v, side="right", sorter=s, out_int32=True), grad=[], tag="sorter")
case("bucketize", [rand(3, 4), line], [x0, x1], torch.bucketize, grad=[])
case("bucketize", [rand(3, 4), line], [x0, x1, {"out_int32": True}],
     lambda v, x: torch.bucketize(v, x, out_int32=True), grad=[], tag="int32")
case("isin", [ints(3, 4, high=6), torch.tensor([1, 5, 2])], [x0, x1], torch.isin, grad=[])
case("isin", [ints(3, 4, high=6), torch.tensor([1, 5, 2])], [x0, x1, {"invert": True}],
     lambda x, v: torch.isin(x, v, invert=True), grad=[], tag="invert")
case("bincount", [ints(12, high=5)], [x0], torch.bincount, grad=[])
case("bincount", [ints(6, high=5)], [x0, {"minlength": 9}], lambda x: x.bincount(minlength=9), grad=[], tag="minlength")
case("histc", [rand(4, 6)], [x0, 5], lambda x: x.histc(5), grad=[])
case("histc", [rand(4, 6)], [x0, 4, -1, 1], lambda x: x.histc(4, -1, 1), grad=[], tag="range")
case("unique", [ints(3, 4, high=5)], [x0], torch.unique, grad=[])
case("unique", [ints(3, 4, high=5)], [x0, {"return_inverse": True, "return_counts": True}],
     lambda x: torch.unique(x, return_inverse=True, return_counts=True), grad=[], tag="all")
case("unique", [ints(3, 4, high=5)], [x0, {"return_counts": True}], lambda x: torch.unique(x, return_counts=True), grad=[],
     tag="counts")
case("unique", [ints(6, 2, 2, high=2)], [x0, {"dim": 1, "return_inverse": True, "return_counts": True}],
     lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True), grad=[], tag="rows")
case("unique", [ints(3, 5, high=2)], [x0, {"dim": -1}], lambda x: torch.unique(x, dim=-1), grad=[], tag="columns")
case("unique_consecutive", [ints(2, 8, high=2)], [x0, {"dim": 2, "return_inverse": True, "return_counts": True}],
     lambda x: torch.unique_consecutive(x, dim=1, return_inverse=True, return_counts=True), grad=[], tag="columns")
case("unique_consecutive", [ints(12, high=2)], [x0, {"return_inverse": True, "return_counts": True}],
     lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), grad=[])
case("cov", [rand(3, 6)], [x0], torch.cov, growth=32)
case("cov", [rand(3, 6), torch.tensor([1, 2, 3, 1, 2, 1]), rand(6, low=0.25, high=2)], [x0, x1, x2],
     lambda x, f, a: torch.cov(x, fweights=f, aweights=a), growth=64, tag="weights")
case("cov", [rand(3, 6), torch.tensor([1, 2, 0, 1, 2, 1])], [x0, x1, {"correction": 0}],
     lambda x, f: torch.cov(x, correction=0, fweights=f), growth=64, tag="frequencies")
case("cov", [rand(6)], [x0, {"correction": 0}], lambda x: torch.cov(x, correction=0), growth=32, tag="of a vector")
case("corrcoef", [rand(3, 6)], [x0], torch.corrcoef, growth=64)
