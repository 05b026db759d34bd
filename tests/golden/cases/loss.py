"""Cases of the loss family."""
import torch
import torch.nn.functional as F

from . import case, distinct, flags, ints, rand, x0, x1, x2, x3


def ignored(target):
    """The third row is left out of the loss."""
    target = target.clone()
    target[2] = -100
    return target


target, holes = ints(6, high=5), ints(6, high=5).map(ignored)
labels = flags(3, 4).map(torch.Tensor.double)
probabilities = rand(4, 5).map(lambda x: F.softmax(x, 1).mul(16).round() / 16)

case("cross_entropy", [rand(6, 5), target], [x0, x1], F.cross_entropy, growth=8)
case("cross_entropy", [rand(6, 5), holes, rand(5, low=0.5)], [x0, x1, x2, {"label_smoothing": 0.125}],
     lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.125), grad=[0], growth=16, tag="weights, smoothing, ignored")
for r in ("none", "sum"):
    case("cross_entropy", [rand(6, 5), holes], [x0, x1, {"reduction": r}],
         lambda x, t, r=r: F.cross_entropy(x, t, reduction=r), growth=8, tag=r)
case("cross_entropy", [rand(2, 5, 3), ints(2, 3, high=5)], [x0, x1], F.cross_entropy, growth=8, tag="positions")
case("cross_entropy", [rand(4, 5), probabilities], [x0, x1], F.cross_entropy, grad=[0], growth=8, tag="probabilities")
case("linear_cross_entropy", [rand(6, 4), rand(5, 4), target], [x0, x1, x2],
     lambda x, w, t: F.cross_entropy(F.linear(x, w), t), growth=64)
case("linear_cross_entropy", [rand(6, 4), rand(5, 4), holes, rand(5)], [x0, x1, x2, x3, {"reduction": "sum"}],
     lambda x, w, t, b: F.cross_entropy(F.linear(x, w, b), t, reduction="sum"), growth=64, tag="bias, sum, ignored")
case("nll_loss", [rand(6, 5), holes, rand(5, low=0.5)], [x0, x1, x2], lambda x, t, w: F.nll_loss(x, t, w), grad=[0], growth=8)
case("nll_loss", [rand(6, 5), target], [x0, x1, {"reduction": "none"}], lambda x, t: F.nll_loss(x, t, reduction="none"),
     tag="none")
for name, f in [("mse_loss", F.mse_loss), ("l1_loss", F.l1_loss), ("smooth_l1_loss", F.smooth_l1_loss)]:
    for r in ("mean", "sum", "none"):
        case(name, [rand(3, 4), distinct(3, 4) + 1 / 32], [x0, x1, {"reduction": r}],
             lambda x, t, f=f, r=r: f(x, t, reduction=r), growth=8, tag=r)
case("binary_cross_entropy_with_logits", [rand(3, 4), labels], [x0, x1], F.binary_cross_entropy_with_logits,
     grad=[0], growth=8)
case("binary_cross_entropy_with_logits", [rand(3, 4), labels, rand(4, low=0.5)],
     [x0, x1, x2, {"pos_weight": 2.0, "reduction": "sum"}],
     lambda x, t, w: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=torch.tensor(2.0), reduction="sum"),
     grad=[0], growth=16, tag="weights, sum")
case("binary_cross_entropy", [rand(3, 4, low=0.125, high=0.875), labels], [x0, x1], F.binary_cross_entropy,
     grad=[0], growth=8)
case("kl_div", [rand(3, 4), rand(3, 4, low=0.25, high=1)], [x0, x1],
     lambda x, t: F.kl_div(x, t, reduction="sum") / x.numel(), grad=[0], growth=8)
case("kl_div", [rand(3, 4), rand(3, 4)], [x0, x1, {"log_target": True, "reduction": "batchmean"}],
     lambda x, t: F.kl_div(x, t, log_target=True, reduction="batchmean"), grad=[0], growth=8, tag="of logarithms")
