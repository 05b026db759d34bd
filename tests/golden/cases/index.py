"""Cases of the index family."""
import torch
import torch.nn.functional as F

from . import case, distinct, flags, ints, rand, x0, x1, x2

case("embedding", [ints(2, 3, high=5), rand(5, 4)], [x0, x1], F.embedding, growth=8)
case("embedding", [ints(20, high=3), rand(3, 4)], [x0, x1, {"padding_idx": 1}],
     lambda i, w: F.embedding(i, w, padding_idx=1), growth=24, tag="padding")
case("gather", [rand(3, 5), ints(3, 2, high=5)], [x0, 2, x1], lambda x, i: x.gather(1, i), growth=8)
case("gather", [rand(3, 5), ints(4, 5, high=3)], [x0, 1, x1], lambda x, i: x.gather(0, i), growth=8, tag="first dim")
case("scatter_add", [rand(3, 5), ints(3, 4, high=5), rand(3, 4)], [x0, 2, x1, x2],
     lambda x, i, s: x.scatter_add(1, i, s), growth=8)
case("index_select", [rand(3, 5), ints(6, high=5)], [x0, 2, x1], lambda x, i: x.index_select(1, i), growth=8)
case("index_add", [rand(3, 5), ints(4, high=3), rand(4, 5)], [x0, 1, x1, x2], lambda x, i, s: x.index_add(0, i, s), growth=8)
case("index_add", [rand(3, 5), ints(4, high=5), rand(3, 4)], [x0, -1, x1, x2, {"alpha": -2}],
     lambda x, i, s: x.index_add(1, i, s, alpha=-2), growth=8, tag="alpha")
case("index_put", [rand(5, 3), torch.tensor([3, 0, 3]), rand(3, 3)], [x0, x1, x2, True],
     lambda x, i, s: x.index_put((i,), s, accumulate=True), tag="accumulate")
case("index_put", [rand(5, 3), torch.tensor([[3, 0], [1, 3]]), rand(3)], [x0, x1, x2, True],
     lambda x, i, s: x.index_put((i,), s, accumulate=True), tag="accumulate, broadcast")
case("index_put", [rand(5, 3), torch.tensor([3, 0]), rand(2, 3)], [x0, x1, x2], lambda x, i, s: x.index_put((i,), s))
case("masked_select", [rand(3, 4), flags(3, 4)], [x0, x1], torch.masked_select)
case("masked_scatter", [rand(3, 4), flags(3, 4), rand(12)], [x0, x1, x2], torch.masked_scatter)
case("nonzero", [rand(3, 4, low=-0.125, high=0.125)], [x0], torch.nonzero, grad=[])
case("one_hot", [ints(2, 3, high=4)], [x0, 4], lambda i: F.one_hot(i, 4), grad=[])
case("topk", [distinct(3, 6)], [x0, 2], lambda x: tuple(x.topk(2)))
case("topk", [distinct(6, 3)], [x0, 3, 1, {"largest": False}], lambda x: tuple(x.topk(3, 0, largest=False)), tag="smallest")
case("sort", [distinct(3, 6)], [x0], lambda x: tuple(x.sort()))
case("sort", [distinct(3, 6)], [x0, 1, {"descending": True}], lambda x: tuple(x.sort(0, descending=True)), tag="descending")
case("cat", [rand(2, 3), rand(2, 2), rand(2, 1)], [[x0, x1, x2], 2], lambda *xs: torch.cat(xs, 1))
case("stack", [rand(2, 3), rand(2, 3)], [[x0, x1], 3], lambda *xs: torch.stack(xs, 2))
case("flip", [rand(3, 4)], [x0, [1, 2]], lambda x: x.flip((0, 1)))
case("repeat_interleave", [rand(3, 4)], [x0, 2, 2], lambda x: x.repeat_interleave(2, 1), growth=8)
case("repeat_interleave", [rand(3, 4), torch.tensor([2, 0, 1, 3])], [x0, x1, 2], lambda x, n: x.repeat_interleave(n, 1),
     growth=8, tag="by a tensor")
