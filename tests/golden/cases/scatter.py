"""Cases of the scatter family."""
import torch

from . import case, distinct, ints, rand, x0, x1, x2

PLACES = torch.tensor([[1, 4, 1, 0], [2, 2, 2, 3], [0, 4, 0, 4]])  # several to a place, and places that none goes to
for name, draw in [("sum", rand), ("prod", rand), ("mean", rand), ("amax", distinct), ("amin", distinct)]:
    both = distinct(6, 5) if draw is distinct else None
    x = both.map(lambda t: t[:3]) if both else rand(3, 5)
    for own in (True, False):
        tag = name if own else f"{name}, without its own"
        source = distinct(3, 4).map(lambda t: t + 1 / 32) if both else rand(3, 4)
        case("scatter_reduce", [x, PLACES, source], [x0, 2, x1, x2, name, {"include_self": own}],
             lambda x, i, s, name=name, own=own: x.scatter_reduce(1, i, s, name, include_self=own), growth=32,
             tag="" if tag == "sum" else tag)
case("scatter_reduce", [rand(4, 3), ints(5, 3, high=4), rand(5, 3)], [x0, 1, x1, x2, "prod"],
     lambda x, i, s: x.scatter_reduce(0, i, s, "prod"), growth=32, tag="first dim")
for name in ["prod", "mean", "amax", "amin"]:
    case("index_reduce", [distinct(5, 3), torch.tensor([4, 0, 4, 2]), distinct(4, 3).map(lambda t: t + 1 / 32)],
         [x0, 1, x1, x2, name], lambda x, i, s, name=name: x.index_reduce(0, i, s, name), growth=32,
         tag="" if name == "prod" else name)
case("index_reduce", [rand(2, 5), torch.tensor([4, 0, 4]), rand(2, 3)], [x0, 2, x1, x2, "mean", {"include_self": False}],
     lambda x, i, s: x.index_reduce(1, i, s, "mean", include_self=False), growth=32, tag="without its own")
case("slice_scatter", [rand(3, 8), rand(3, 3)], [x0, x1, 2, 2, 7, 2], lambda x, s: x.slice_scatter(s, 1, 1, 7, 2))
case("slice_scatter", [rand(5, 2), rand(2, 2)], [x0, x1, 1, -2, -1], lambda x, s: x.slice_scatter(s, 0, -2), tag="rows")
case("diagonal_scatter", [rand(3, 4), rand(3)], [x0, x1], lambda x, s: x.diagonal_scatter(s))
case("diagonal_scatter", [rand(3, 2, 4), rand(2, 3)], [x0, x1, 1, 1, 3], lambda x, s: x.diagonal_scatter(s, 1, 0, 2),
     tag="above")
case("take", [rand(3, 4), torch.tensor([[0, 11], [5, 5]])], [x0, x1], torch.take, growth=8)
case("put", [rand(3, 4), torch.tensor([[0, 11], [5, 4]]), rand(4)], [x0, x1, x2], lambda x, i, s: x.put(i, s))
case("put", [rand(3, 4), torch.tensor([0, 11, 5, 5]), rand(2, 2)], [x0, x1, x2, True], lambda x, i, s: x.put(i, s, True),
     growth=8, tag="added")
