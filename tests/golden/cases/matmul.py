"""Cases of the matmul family."""
import torch
import torch.nn.functional as F

from . import case, rand, x0, x1, x2, x3, x4

case("matmul", [rand(3, 4), rand(4, 5)], [x0, x1], torch.matmul, growth=8)
case("matmul", [rand(4), rand(4, 5)], [x0, x1], torch.matmul, growth=8, tag="vector, matrix")
case("matmul", [rand(3, 4), rand(4)], [x0, x1], torch.matmul, growth=8, tag="matrix, vector")
case("matmul", [rand(4), rand(4)], [x0, x1], torch.matmul, growth=8, tag="vectors")
case("matmul", [rand(2, 1, 3, 4), rand(5, 4, 6)], [x0, x1], torch.matmul, growth=8, tag="broadcast batches")
case("matmul", [rand(2, 3, 4), rand(4, 5)], [x0, x1], torch.matmul, growth=8, tag="batch by matrix")
case("matmul", [rand(70, 65), rand(65, 90)], [x0, x1], torch.matmul, growth=32, tag="larger")
case("matmul", [rand(3, 0), rand(0, 5)], [x0, x1], torch.matmul, tag="empty")
case("mm", [rand(3, 4), rand(4, 5)], [x0, x1], torch.mm, growth=8)
case("bmm", [rand(2, 3, 4), rand(2, 4, 5)], [x0, x1], torch.bmm, growth=8)
case("mv", [rand(3, 4), rand(4)], [x0, x1], torch.mv, growth=8)
case("dot", [rand(4), rand(4)], [x0, x1], torch.dot, growth=8)
case("outer", [rand(3), rand(4)], [x0, x1], torch.outer)
case("addmm", [rand(5), rand(3, 4), rand(4, 5)], [x0, x1, x2, {"beta": 0.5, "alpha": 2.0}],
     lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), growth=12)
case("baddbmm", [rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5)], [x0, x1, x2], torch.baddbmm, growth=12)
acts = {"none": lambda x: x, "relu": torch.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
for act, f in acts.items():
    case("linear", [rand(3, 4), rand(5, 4), rand(5)], [x0, x1, x2, {"activation": act}],
         lambda x, w, b, f=f: f(F.linear(x, w, b)), growth=16, tag=act)
case("linear", [rand(2, 3, 4), rand(5, 4)], [x0, x1], F.linear, growth=8, tag="no bias, 3 dims")
case("linear", [rand(4), rand(5, 4), rand(5)], [x0, x1, x2], F.linear, growth=8, tag="vector")
for act in ("relu", "gelu", "gelu_tanh"):
    case("mlp", [rand(3, 4), rand(6, 4), rand(6), rand(5, 6), rand(5)], [x0, x1, x2, x3, x4, {"activation": act}],
         lambda x, w1, b1, w2, b2, f=acts[act]: F.linear(f(F.linear(x, w1, b1)), w2, b2), growth=64, tag=act)
