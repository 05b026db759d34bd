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
for name, f in [("mse_loss", F.mse_loss), ("l1_loss", F.l1_loss)]:
    for r in ("mean", "sum", "none"):
        case(name, [rand(3, 4), distinct(3, 4) + 1 / 32, rand(3, 4, low=0.25)], [x0, x1, x2, {"reduction": r}],
             lambda x, t, w, f=f, r=r: f(x, t, reduction=r, weight=w), growth=16, tag=f"weight, {r}")
case("binary_cross_entropy_with_logits", [rand(3, 4), labels], [x0, x1], F.binary_cross_entropy_with_logits,
     grad=[0], growth=8)
case("binary_cross_entropy_with_logits", [rand(3, 4), labels, rand(4, low=0.5)],
     [x0, x1, x2, {"pos_weight": 2.0, "reduction": "sum"}],
     lambda x, t, w: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=torch.tensor(2.0), reduction="sum"),
     grad=[0], growth=16, tag="weights, sum")
case("binary_cross_entropy_with_logits", [rand(3, 4), labels, rand(4, low=0.5)], [x0, x1, None, x2],
     lambda x, t, p: F.binary_cross_entropy_with_logits(x, t, pos_weight=p), grad=[0], growth=16, tag="pos_weight")
case("binary_cross_entropy", [rand(3, 4, low=0.125, high=0.875), labels], [x0, x1], F.binary_cross_entropy,
     grad=[0], growth=8)
case("kl_div", [rand(3, 4), rand(3, 4, low=0.25, high=1)], [x0, x1],
     lambda x, t: F.kl_div(x, t, reduction="sum") / x.numel(), grad=[0], growth=8)
case("kl_div", [rand(3, 4), rand(3, 4)], [x0, x1, {"log_target": True, "reduction": "batchmean"}],
     lambda x, t: F.kl_div(x, t, log_target=True, reduction="batchmean"), grad=[0], growth=8, tag="of logarithms")

# Losses that are formulas. Margins and kinks lie between the multiples of 1/16 that inputs are.
signs = flags(3, 4).map(lambda x: x.double() * 2 - 1)
row_signs = flags(5).map(lambda x: x.double() * 2 - 1)
positive = rand(3, 4, low=0.25, high=3)
thirds = rand(4, 5).map(lambda x: (x * 16 / 3).round() * 3 / 16)  # no two differ by 1
several = torch.tensor([[3, 0, -1, 1, 4], [-1, 2, 2, 2, 2], [4, 4, 1, 0, -1], [0, 1, 2, 3, 4]])
every = ("mean", "sum", "none")
for r in every:
    case("huber_loss", [rand(3, 4), distinct(3, 4)], [x0, x1, {"reduction": r, "delta": 0.78}],
         lambda x, t, r=r: F.huber_loss(x, t, reduction=r, delta=0.78), growth=8, tag=r)
    case("soft_margin_loss", [rand(3, 4), signs], [x0, x1, {"reduction": r}],
         lambda x, t, r=r: F.soft_margin_loss(x, t, reduction=r), grad=[0], growth=8, tag=r)
    case("hinge_embedding_loss", [rand(3, 4, low=-1, high=3), signs], [x0, x1, {"reduction": r, "margin": 1.03}],
         lambda x, t, r=r: F.hinge_embedding_loss(x, t, 1.03, reduction=r), grad=[0], growth=8, tag=r)
    case("margin_ranking_loss", [rand(3, 4), rand(3, 4), signs], [x0, x1, x2, {"reduction": r, "margin": 0.28}],
         lambda x, y, t, r=r: F.margin_ranking_loss(x, y, t, 0.28, reduction=r), growth=8, tag=r)
    case("triplet_margin_loss", [rand(5, 4), rand(5, 4), rand(5, 4)], [x0, x1, x2, {"reduction": r, "margin": 2.03}],
         lambda a, p, n, r=r: F.triplet_margin_loss(a, p, n, 2.03, reduction=r), growth=16, tag=r)
    case("cosine_embedding_loss", [rand(5, 4), rand(5, 4), row_signs], [x0, x1, x2, {"reduction": r, "margin": 0.11}],
         lambda x, y, t, r=r: F.cosine_embedding_loss(x, y, t, 0.11, reduction=r), grad=[0, 1], growth=16, tag=r)
    case("poisson_nll_loss", [rand(3, 4), positive], [x0, x1, {"reduction": r}],
         lambda x, t, r=r: F.poisson_nll_loss(x, t, reduction=r), growth=8, tag=r)
    case("gaussian_nll_loss", [rand(3, 4), rand(3, 4), positive], [x0, x1, x2, {"reduction": r}],
         lambda x, t, v, r=r: F.gaussian_nll_loss(x, t, v, reduction=r), growth=16, tag=r)
    case("multilabel_margin_loss", [thirds, several], [x0, x1, {"reduction": r}],
         lambda x, t, r=r: F.multilabel_margin_loss(x, t, reduction=r), growth=16, tag=r)
    case("multilabel_soft_margin_loss", [rand(3, 4), labels], [x0, x1, {"reduction": r}],
         lambda x, t, r=r: F.multilabel_soft_margin_loss(x, t, reduction=r), growth=8, tag=r)
    case("multi_margin_loss", [rand(6, 5), target], [x0, x1, {"reduction": r, "margin": 0.97}],
         lambda x, t, r=r: F.multi_margin_loss(x, t, margin=0.97, reduction=r), growth=16, tag=r)
case("huber_loss", [rand(3, 4), distinct(3, 4), rand(3, 4, low=0.5)], [x0, x1, x2],
     lambda x, t, w: F.huber_loss(x, t, weight=w), growth=8, tag="weights")
case("triplet_margin_loss", [rand(5, 4), rand(5, 4), rand(5, 4)], [x0, x1, x2, {"swap": True, "p": 3, "eps": 0.01}],
     lambda a, p, n: F.triplet_margin_loss(a, p, n, p=3, eps=0.01, swap=True), growth=32, tag="swap, p = 3")
case("triplet_margin_loss", [rand(4), rand(4), rand(4)], [x0, x1, x2, {"margin": 3.03}],
     lambda a, p, n: F.triplet_margin_loss(a, p, n, 3.03), growth=16, tag="one sample")
case("cosine_embedding_loss", [rand(4), rand(4), torch.tensor(1.0).double()], [x0, x1, x2],
     F.cosine_embedding_loss, grad=[0, 1], growth=16, tag="one sample")
case("poisson_nll_loss", [positive, rand(3, 4, low=0.25, high=3)], [x0, x1, {"log_input": False, "full": True}],
     lambda x, t: F.poisson_nll_loss(x, t, log_input=False, full=True), growth=16, tag="of rates, full")
case("gaussian_nll_loss", [rand(3, 4), rand(3, 4), rand(3, low=0.25, high=3)], [x0, x1, x2, {"full": True}],
     lambda x, t, v: F.gaussian_nll_loss(x, t, v, full=True), growth=16, tag="a variance per row, full")
case("gaussian_nll_loss", [rand(3, 4), rand(3, 4)], [x0, x1, 0.5],
     lambda x, t: F.gaussian_nll_loss(x, t, 0.5), growth=16, tag="a number")
case("gaussian_nll_loss", [rand(3, 4), rand(3, 4), rand(3, 4, low=0, high=2)], [x0, x1, x2, {"eps": 0.78}],
     lambda x, t, v: F.gaussian_nll_loss(x, t, v, eps=0.78), growth=16, tag="eps")
case("multilabel_margin_loss", [rand(5), torch.tensor([1, 3, -1, 0, 0])], [x0, x1], F.multilabel_margin_loss, growth=16, tag="one sample")
case("multilabel_soft_margin_loss", [rand(3, 4), labels, rand(4, low=0.5)], [x0, x1, x2], F.multilabel_soft_margin_loss,
     growth=8, tag="weights")
case("multi_margin_loss", [rand(6, 5), target, rand(5, low=0.5)], [x0, x1, x2, {"p": 2, "margin": 0.97}],
     lambda x, t, w: F.multi_margin_loss(x, t, p=2, margin=0.97, weight=w), grad=[0], growth=16, tag="squares, weights")
case("multi_margin_loss", [rand(5), torch.tensor(3)], [x0, x1, {"margin": 0.97}],
     lambda x, t: F.multi_margin_loss(x, t, margin=0.97), growth=16, tag="one sample")


def focal(x, t, alpha=0.25, gamma=2):
    """torchvision.ops.sigmoid_focal_loss, without its reduction."""
    p = torch.sigmoid(x)
    p_t = p * t + (1 - p) * (1 - t)
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="none") * (1 - p_t) ** gamma
    return loss if alpha < 0 else (alpha * t + (1 - alpha) * (1 - t)) * loss


def dice(x, t, smooth=1):
    """One loss per sample."""
    x, t = x.flatten(1), t.flatten(1)
    return 1 - (2 * (x * t).sum(1) + smooth) / (x.sum(1) + t.sum(1) + smooth)


case("sigmoid_focal_loss", [rand(3, 4), labels], [x0, x1], focal, grad=[0], growth=16)
case("sigmoid_focal_loss", [rand(3, 4), labels], [x0, x1, {"alpha": -1, "gamma": 1.5, "reduction": "mean"}],
     lambda x, t: focal(x, t, -1, 1.5).mean(), grad=[0], growth=16, tag="no weights, mean")
case("sigmoid_focal_loss", [rand(3, 4), labels], [x0, x1, {"alpha": 0.6, "reduction": "sum"}],
     lambda x, t: focal(x, t, 0.6).sum(), grad=[0], growth=16, tag="sum")
case("dice_loss", [rand(3, 4, low=0, high=1), labels], [x0, x1], lambda x, t: dice(x, t).mean(), growth=8)
case("dice_loss", [rand(2, 3, 4, low=0, high=1), rand(2, 3, 4, low=0, high=1)], [x0, x1, {"smooth": 0.5, "reduction": "none"}],
     lambda x, t: dice(x, t, 0.5), growth=8, tag="none")
case("dice_loss", [rand(3, 4, low=0, high=1), labels], [x0, x1, {"reduction": "sum"}], lambda x, t: dice(x, t).sum(), growth=8, tag="sum")


def ctc(x, targets, steps, lengths, blank=0, reduction="mean", zero_infinity=False):
    """PyTorch's loss with the derivative by log-probabilities: its own adds exp(x), which log_softmax takes away again."""
    batched = x.dim() == 3
    losses = F.ctc_loss(x, targets, steps, lengths, blank, "none", zero_infinity)
    counts = (torch.arange(len(x)).reshape(-1, 1) < steps.reshape(1, -1)) if batched else torch.arange(len(x)) < steps
    extra = (x.exp().sum(-1) * counts).sum(0) * (losses.detach() != 0)
    losses = losses - (extra - extra.detach())
    if reduction == "mean":
        return (losses / lengths.clamp(min=1)).mean()
    return losses.sum() if reduction == "sum" else losses


# More than 300 elements: PyTorch's kernel reads out of bounds where sizes are cut, so test_losses.lua has the edges.
steps, lengths, fewer = torch.tensor([13, 4, 9, 7]), torch.tensor([2, 4, 0, 3]), torch.tensor([13, 3, 0, 4])
log_probs = rand(13, 4, 6, low=-3, high=0)
words = torch.tensor([[1, 3, 0, 0], [2, 5, 1, 4], [0, 0, 0, 0], [2, 2, 1, 0]])
joined = torch.tensor([0, 3, 2, 4, 0, 5, 2, 2, 0])
case("ctc_loss", [log_probs, words, steps, lengths], [x0, x1, x2, x3], ctc, growth=16)
for r in ("sum", "none"):
    case("ctc_loss", [log_probs, words, steps, lengths], [x0, x1, x2, x3, {"reduction": r}],
         lambda x, t, s, n, r=r: ctc(x, t, s, n, reduction=r), growth=16, tag=r)
case("ctc_loss", [log_probs, joined, steps, lengths], [x0, x1, x2, x3, {"blank": 1}],
     lambda x, t, s, n: ctc(x, t, s, n, 1), growth=16, tag="one after another, blank 1")
case("ctc_loss", [log_probs, words, fewer, lengths], [x0, x1, x2, x3, {"zero_infinity": True, "reduction": "none"}],
     lambda x, t, s, n: ctc(x, t, s, n, 0, "none", True), growth=16, tag="no alignment")
