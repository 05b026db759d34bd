"""Cases of the product family."""
import torch

from . import case, rand, x0, x1, x2

EQUATIONS = {
    "": ("ij,jk->ik", (3, 4), (4, 5)), "implicit": ("ba,ac", (3, 4), (4, 5)), "batches": ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)),
    "heads": ("bthd,bshd->bhts", (2, 3, 2, 4), (2, 5, 2, 4)), "outer": ("i,j->ji", (3,), (4,)), "trace": ("ii", (4, 4)),
    "diagonal": ("bii->ib", (2, 3, 3)), "sums": ("ijk->j", (2, 3, 4)), "transposed": ("ijk->kij", (2, 3, 4)),
    "ellipsis": ("...ij,...jk->...ik", (2, 3, 4), (4, 5)), "implicit ellipsis": ("...ij,jk", (2, 3, 4), (4, 5)),
    "elements": ("ij,ij->i", (3, 4), (3, 4)), "size one": ("ij,jk->ik", (3, 1), (4, 5)),
    "unused": ("ij,jkl->ik", (3, 4), (4, 5, 2)), "repeated": ("iij,jk->ki", (3, 3, 4), (4, 2)),
    "bilinear": ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)), "triple": ("i,j,k->ikj", (2,), (3,), (4,)),
    "many shared": ("abcdefi,fedcbai->abcdef", (1, 2, 1, 2, 1, 2, 3), (2, 1, 2, 1, 2, 1, 3)),
    "three shared": ("ibacj,kabcj->bkcai", (4, 2, 3, 2, 5), (3, 3, 2, 2, 5)),
}
for tag, (equation, *shapes) in EQUATIONS.items():
    case("einsum", [rand(*shape) for shape in shapes], [equation, *[x0, x1, x2][:len(shapes)]],
         lambda *xs, equation=equation: torch.einsum(equation, *xs), growth=32, tag=tag)
case("tensordot", [rand(2, 3, 4), rand(3, 4, 5)], [x0, x1], lambda x, y: torch.tensordot(x, y, 2), growth=32)
case("tensordot", [rand(2, 3), rand(4, 5)], [x0, x1, 0], lambda x, y: torch.tensordot(x, y, 0), tag="outer", growth=24)
case("tensordot", [rand(2, 3, 4), rand(4, 5, 2)], [x0, x1, {"x_dims": [1, 3], "y_dims": [3, 1]}],
     lambda x, y: torch.tensordot(x, y, ([0, 2], [2, 0])), growth=32, tag="named")
case("inner", [rand(2, 4), rand(3, 4)], [x0, x1], torch.inner, growth=16)
case("vdot", [rand(6), rand(6)], [x0, x1], torch.vdot, growth=16)
case("ger", [rand(3), rand(4)], [x0, x1], torch.ger, growth=8)
case("kron", [rand(2, 3), rand(3, 2)], [x0, x1], torch.kron, growth=16)
case("kron", [rand(2), rand(3, 2)], [x0, x1], torch.kron, growth=16, tag="of a vector")
case("cross", [rand(4, 3), rand(4, 3)], [x0, x1, -1], lambda x, y: torch.cross(x, y, -1), growth=8)
case("addmv", [rand(3), rand(3, 4), rand(4)], [x0, x1, x2, {"beta": 0.5, "alpha": 2}],
     lambda x, a, b: torch.addmv(x, a, b, beta=0.5, alpha=2), growth=16)
case("addr", [rand(3, 4), rand(3), rand(4)], [x0, x1, x2, {"beta": 0.5, "alpha": 2}],
     lambda x, a, b: torch.addr(x, a, b, beta=0.5, alpha=2), growth=16)
case("addbmm", [rand(3, 5), rand(2, 3, 4), rand(2, 4, 5)], [x0, x1, x2, {"beta": 0.5, "alpha": 2}],
     lambda x, a, b: torch.addbmm(x, a, b, beta=0.5, alpha=2), growth=32)
