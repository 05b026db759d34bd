#!/usr/bin/env python3
"""Golden numbers for functions and layers that the Lua half makes of ops, with PyTorch in float64.

Usage: python tests/golden/made.py [--check]      (needs torch; writes tests/golden/made/made.jsonl)

A line keeps the call as Lua writes it (of gb, F, nn, L and inputs a, b, c, d), its inputs, outputs, the gradients that
come in, and those of the inputs. What is drawn is made comparable by an argument, or has tests of its own.
"""
from decimal import Decimal as D
from decimal import getcontext

import cases
import lines
import torch
import torch.nn.functional as F
from torch import nn

L = torch.linalg
ROWS = []
rand, ints, distinct = cases.rand, cases.ints, cases.distinct


def case(name, lua, inputs, fn, grad=None, growth=64):
    """grad: places of inputs that are differentiated, all floats unless given. growth: in spacings of the dtype."""
    words = [cases.Words(f"made {name}: in{i}") for i in range(len(inputs))]
    inputs = [x.draw(w) if isinstance(x, cases.Drawn) else x for x, w in zip(inputs, words)]
    if grad is None:
        grad = [i for i, x in enumerate(inputs) if x.is_floating_point()]
    leaves = [x.clone().requires_grad_(i in grad) for i, x in enumerate(inputs)]
    outs = fn(*[x.clone() if x.requires_grad and "clone" in name else x for x in leaves])
    outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
    tensors = {f"in{i}": x for i, x in enumerate(inputs)} | {f"out{i}": o for i, o in enumerate(outs)}
    graded = [i for i, o in enumerate(outs) if o.requires_grad]
    if grad:
        ups = [rand(*outs[i].shape, away=0.25).draw(cases.Words(f"made {name}: up{i}")) for i in graded]
        grads = torch.autograd.grad([outs[i] for i in graded], [leaves[i] for i in grad], ups, allow_unused=True)
        tensors |= {f"up{i}": u for i, u in zip(graded, ups)}
        tensors |= {f"grad{i}": torch.zeros_like(inputs[i]) if g is None else g for i, g in zip(grad, grads)}
    ROWS.append({"name": name, "lua": lua, "inputs": len(inputs), "outputs": len(outs), "graded": graded, "grad": grad,
                 "growth": growth, "tensors": {key: lines.tensor(t) for key, t in tensors.items()}})


# {==== embeddings ====
for index, tag in ((ints(3, 7, high=5), "matrix"), (ints(9, high=4), "vector")):
    for options, words in ((dict(scale_grad_by_freq=True), "{ scale_grad_by_freq = true }"),
                           (dict(scale_grad_by_freq=True, padding_idx=2), "{ scale_grad_by_freq = true, padding_idx = 2 }"),
                           (dict(max_norm=1.5), "{ max_norm = 1.5 }"),
                           (dict(max_norm=2.0, norm_type=1.0), "{ max_norm = 2, norm_type = 1 }")):
        # the table comes out, too: rows that were picked are scaled down where they lie
        case(f"embedding, clone, {tag}, {words}",
             f"(function() local w = b:clone() local y = F.embedding(a, w, {words}) return y, w end)()",
             [index, rand(6, 4)], lambda i, w, o=options: (F.embedding(i, w, **o), w.detach()), grad=[1])
starts = torch.tensor([0, 2, 2, 5])
for mode in ("sum", "mean"):
    case(f"embedding_bag, by frequency, {mode}", f"F.embedding_bag(a, b, {{ scale_grad_by_freq = true, mode = '{mode}' }})",
         [ints(3, 5, high=4), rand(5, 3)], lambda i, w, m=mode: F.embedding_bag(i, w, scale_grad_by_freq=True, mode=m), [1])
    case(f"embedding_bag, by frequency and offsets, {mode}",
         f"F.embedding_bag(a, b, c, {{ scale_grad_by_freq = true, mode = '{mode}' }})", [ints(8, high=3), rand(5, 3), starts],
         lambda i, w, o, m=mode: F.embedding_bag(i, w, o, scale_grad_by_freq=True, mode=m), [1])
    case(f"embedding_bag, clone, max_norm, {mode}",
         f"(function() local w = b:clone() return F.embedding_bag(a, w, {{ max_norm = 1.5, mode = '{mode}' }}), w end)()",
         [ints(3, 5, high=4), rand(5, 3)],
         lambda i, w, m=mode: (F.embedding_bag(i, w, max_norm=1.5, mode=m), w.detach()), [1])
case("embedding_bag, by frequency and weights",
     "F.embedding_bag(a, b, nil, c, { scale_grad_by_freq = true, mode = 'sum' })", [ints(3, 5, high=4), rand(5, 3), rand(3, 5)],
     lambda i, w, s: F.embedding_bag(i, w, None, per_sample_weights=s, scale_grad_by_freq=True, mode="sum"), [1, 2])
# ====}

# {==== activations, losses ====
case("rrelu", "F.rrelu(a, 0.25, 0.5)", [rand(3, 5, away=0.25)], lambda x: F.rrelu(x, 0.25, 0.5))
case("rrelu of one slope", "F.rrelu(a, 0.25, 0.25, true)", [rand(3, 5, away=0.25)], lambda x: F.leaky_relu(x, 0.25))
case("Softmax2d", "nn.Softmax2d()(a)", [rand(2, 3, 2, 2)], nn.Softmax2d())
case("Softmax2d, one image", "nn.Softmax2d()(a)", [rand(3, 2, 2)], nn.Softmax2d())
TRIPLES = [distinct(4, 3), rand(4, 3), rand(4, 3) - 1 / 32]


def largest(a, b):
    return (a - b).abs().amax(-1)


for reduction in ("mean", "sum", "none"):
    case(f"triplet_margin_with_distance_loss, {reduction}",
         "F.triplet_margin_with_distance_loss(a, b, c, { reduction = '%s', margin = 0.7 })" % reduction, TRIPLES,
         lambda a, p, n, r=reduction: F.triplet_margin_with_distance_loss(a, p, n, reduction=r, margin=0.7))
case("triplet_margin_with_distance_loss, swap", "nn.TripletMarginWithDistanceLoss { swap = true, margin = 2.3, "
     "distance_function = function(x, y) return (x - y):abs():amax(-1) end }(a, b, c)", TRIPLES,
     nn.TripletMarginWithDistanceLoss(distance_function=largest, swap=True, margin=2.3))
HOLES = torch.tensor([0, 3, -100, 1, 4, 2])
SHARES = rand(4, 5).map(lambda x: F.softmax(x, 1).mul(16).round() / 16)
case("linear_cross_entropy, weights and smoothing", "F.linear_cross_entropy(a, b, gb.tensor({ 0, 3, -100, 1, 4, 2 }), c, d, "
     "{ label_smoothing = 0.125 })", [rand(6, 4), rand(5, 4), rand(5), rand(5, low=0.5)],
     lambda x, w, b, c: F.cross_entropy(F.linear(x, w, b), HOLES, c, label_smoothing=0.125), grad=[0, 1, 2])
case("linear_cross_entropy, probabilities", "F.linear_cross_entropy(a, b, c, { reduction = 'none' })", [rand(4, 3), rand(5, 3), SHARES],
     lambda x, w, t: F.linear_cross_entropy(x, w, t, reduction="none"), grad=[0, 1])
case("LinearCrossEntropyLoss", "(function() local m = nn.LinearCrossEntropyLoss(3, 4, { bias = true }) m.linear.weight = nn.Parameter(b) "
     "m.linear.bias = nn.Parameter(c) m:double() return m(a, gb.tensor({ 0, 3, 1, 1, 2 })) end)()", [rand(5, 3), rand(4, 3), rand(4)],
     lambda x, w, b: F.linear_cross_entropy(x, w, torch.tensor([0, 3, 1, 1, 2]), linear_bias=b), grad=[0])
case("LinearCrossEntropyLoss, places", "(function() local m = nn.LinearCrossEntropyLoss(3, 4, { out_features = 2, weight = c }) "
     "m.linear.weight = nn.Parameter(b) m:double() return m(a, gb.tensor({ { 0, 3 }, { 1, 1 } })) end)()",
     [rand(2, 3), rand(8, 3), rand(4, low=0.5)],
     lambda x, w, c: F.linear_cross_entropy(x, w.reshape(4, 2, 3), torch.tensor([[0, 3], [1, 1]]), weight=c), grad=[0])


def adaptive(head, w1, w2, w3, w4, run):
    m = nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], div_value=2.0).double()
    state = {"head.weight": head, "tail.0.0.weight": w1, "tail.0.1.weight": w2, "tail.1.0.weight": w3, "tail.1.1.weight": w4}
    m.load_state_dict(state)
    return run(m)


WEIGHTS = [rand(5, 8).draw(cases.Words("head")), rand(4, 8).draw(cases.Words("w1")), rand(4, 4).draw(cases.Words("w2")),
           rand(2, 8).draw(cases.Words("w3")), rand(5, 2).draw(cases.Words("w4"))]
ADAPTIVE = ("(function() local m = nn.AdaptiveLogSoftmaxWithLoss(8, 12, { 3, 7 }, { div_value = 2 }):double() local w, at = b, 1 "
            "for _, p in ipairs(m:parameters()) do gb.no_grad(function() p:copy_(w:narrow(1, at, p:numel()):reshape(p.shape)) end) "
            "at = at + p:numel() end return %s end)()")
FLAT = torch.cat([w.reshape(-1) for w in WEIGHTS])
case("AdaptiveLogSoftmaxWithLoss", ADAPTIVE % "m(a, gb.tensor({ 0, 2, 3, 6, 7, 11 }))", [rand(6, 8), FLAT],
     lambda x, f: tuple(adaptive(*WEIGHTS, lambda m: m(x, torch.tensor([0, 2, 3, 6, 7, 11])))), grad=[0])
case("AdaptiveLogSoftmaxWithLoss, frequent ones", ADAPTIVE % "m(a, gb.tensor({ 0, 2 }))", [rand(2, 8), FLAT],
     lambda x, f: tuple(adaptive(*WEIGHTS, lambda m: m(x, torch.tensor([0, 2])))), grad=[0])
case("AdaptiveLogSoftmaxWithLoss, one sample", ADAPTIVE % "m(a, gb.tensor(9))", [rand(8), FLAT],
     lambda x, f: tuple(adaptive(*WEIGHTS, lambda m: m(x, torch.tensor(9)))), grad=[0])
case("AdaptiveLogSoftmaxWithLoss:log_prob", ADAPTIVE % "m:log_prob(a)", [rand(4, 8), FLAT],
     lambda x, f: adaptive(*WEIGHTS, lambda m: m.log_prob(x)), grad=[0])
case("AdaptiveLogSoftmaxWithLoss:predict", ADAPTIVE % "m:predict(a)", [rand(4, 8), FLAT],
     lambda x, f: adaptive(*WEIGHTS, lambda m: m.predict(x)), grad=[])
# ====}

# {==== pooling ====
U2, U3 = rand(2, 3, 2, low=0, high=0.9375), rand(2, 2, 3, low=0, high=0.9375)
case("fractional_max_pool2d", "F.fractional_max_pool2d(a, { 2, 3 }, { output_size = { 4, 3 }, random_samples = b, return_indices = true })",
     [distinct(2, 3, 7, 8), U2],
     lambda x, u: F.fractional_max_pool2d(x, (2, 3), (4, 3), return_indices=True, _random_samples=u), grad=[0])
case("fractional_max_pool2d, ratio", "F.fractional_max_pool2d(a, 2, { output_ratio = 0.6, random_samples = b })",
     [distinct(2, 3, 7, 8), U2], lambda x, u: F.fractional_max_pool2d(x, 2, output_ratio=(0.6, 0.6), _random_samples=u), grad=[0])
case("fractional_max_pool2d, one window", "F.fractional_max_pool2d(a, 2, { output_size = { 1, 7 }, random_samples = b })",
     [distinct(2, 3, 7, 8), U2], lambda x, u: F.fractional_max_pool2d(x, 2, (1, 7), _random_samples=u), grad=[0])
case("fractional_max_pool3d", "F.fractional_max_pool3d(a, 2, { output_size = { 3, 2, 4 }, random_samples = b, return_indices = true })",
     [distinct(2, 2, 5, 4, 6), U3],
     lambda x, u: F.fractional_max_pool3d(x, 2, (3, 2, 4), return_indices=True, _random_samples=u), grad=[0])
# ====}

# {==== differences, histograms ====
case("gradient", "table.unpack(gb.gradient(a))", [rand(4, 5)], lambda x: torch.gradient(x))
case("gradient, order 2", "table.unpack(gb.gradient(a, { edge_order = 2, spacing = 0.5 }))", [rand(4, 5)],
     lambda x: torch.gradient(x, spacing=0.5, edge_order=2))
PLACES = torch.tensor([0.0, 1.0, 1.5, 3.0, 3.25], dtype=torch.float64)
for order in (1, 2):
    case(f"gradient by places, order {order}", "table.unpack(gb.gradient(a, { edge_order = %d, spacing = { b }, dim = -1 }))" % order,
         [rand(4, 5), PLACES], lambda x, p, o=order: torch.gradient(x, spacing=(p,), dim=-1, edge_order=o), grad=[0])
case("gradient of two spacings", "table.unpack(gb.gradient(a, { spacing = { 0.5, 2 }, dim = { 3, 1 } }))", [rand(3, 2, 4)],
     lambda x: torch.gradient(x, spacing=(0.5, 2.0), dim=(2, 0)))
for words, options in (("", {}), (", { density = true }", {"density": True}), (", { range = { -1, 1, -2, 1 } }", {"range": [-1.0, 1, -2, 1]})):
    case(f"histogramdd{words}", f"(function() local c, e = gb.histogramdd(a, {{ 3, 4 }}{words}) return c, e[1], e[2] end)()", [rand(5, 7, 2)],
         lambda x, o=options: (lambda h: (h.hist, *h.bin_edges))(torch.histogramdd(x, [3, 4], **o)), grad=[])
case("histogramdd by edges", "(function() local c, e = gb.histogramdd(a, { b, b }, { weight = c }) return c, e[1] end)()",
     [rand(9, 2), torch.tensor([-2.0, -0.5, 0, 1.5], dtype=torch.float64), rand(9, low=0.25)],
     lambda x, e, w: (lambda h: (h.hist, h.bin_edges[0]))(torch.histogramdd(x, [e, e], weight=w)), grad=[])


def gamma_share(a, x, lower):
    """The incomplete gamma functions by their power series, in 60 digits."""
    def logarithm_of_gamma(a):
        numbers = ("1/6", "-1/30", "1/42", "-1/30", "5/66", "-691/2730", "7/6", "-3617/510", "43867/798", "-174611/330")
        shift = D(0)
        while a < 60:
            shift, a = shift + a.ln(), a + 1
        sum = (a - D("0.5")) * a.ln() - a + (2 * D("3.14159265358979323846264338327950288419716939937510582097494")).ln() / 2
        for k, text in enumerate(numbers, 1):
            p, q = text.split("/")
            sum += D(p) / D(q) / (2 * k * (2 * k - 1) * a ** (2 * k - 1))
        return sum - shift

    a, x = D(a), D(x)
    term = sum = D(1)
    n = 0
    while term > sum * D(10) ** -45:
        n += 1
        term *= x / (a + n)
        sum += term
    part = (a * x.ln() - x - logarithm_of_gamma(a + 1)).exp() * sum
    return float(part if lower else 1 - part)


getcontext().prec = 60
GAMMAS = torch.tensor([[1e-3, 0.5], [0.5, 0.75], [0.25, 1.5], [9.5, 9.75], [29.5, 31], [30, 90], [90, 30], [500, 500], [999, 1000], [1000, 1000],
                       [1000, 1149], [1000, 851], [1000, 1300], [1000, 800], [30000, 30100], [30000, 29000], [2e5, 2.01e5]], dtype=torch.float64)
for name, lower in (("igamma", True), ("igammac", False)):
    case(f"{name} in 60 digits", f"gb.{name}(a:select(2, 1), a:select(2, 2))", [GAMMAS],
         lambda x, lower=lower: torch.tensor([gamma_share(a, y, lower) for a, y in x.tolist()], dtype=torch.float64), grad=[])
case("frexp", "gb.frexp(a)", [torch.tensor([0.0, 1, -1, 0.5, 6, -7.75, 1e-310, 5e-324, 1.7e308, 4, 3.999], dtype=torch.float64)],
     lambda x: torch.frexp(x), grad=[])
case("meshgrid, xy", "gb.meshgrid(a, b, c, { indexing = 'xy' })", [rand(2), rand(3), rand(4)],
     lambda *xs: torch.meshgrid(*xs, indexing="xy"))
case("meshgrid, xy of one", "gb.meshgrid(a, { indexing = 'xy' })", [rand(2)], lambda x: torch.meshgrid(x, indexing="xy"))
# ====}

# {==== linear algebra ====
PERMUTED = rand(5, 5).map(lambda x: x + 4 * torch.eye(5, dtype=x.dtype)[[2, 0, 4, 1, 3]])


case("lu", "L.lu(a)", [PERMUTED], lambda a: L.lu(a), growth=512)
case("lu, batch", "L.lu(a)", [rand(2, 3, 4, 4).map(lambda x: x + 3 * torch.eye(4, dtype=x.dtype))], lambda a: L.lu(a), growth=512)
case("lu, wide", "L.lu(a)", [rand(3, 6).map(lambda x: x + 5 * torch.eye(6, dtype=x.dtype)[1:4])], lambda a: L.lu(a), growth=512)
case("lu, tall", "L.lu(a)", [rand(2, 6, 3).map(lambda x: x + 5 * torch.eye(6, dtype=x.dtype)[:, 2:5])], lambda a: L.lu(a), growth=512)
case("lu_factor", "L.lu_factor(a)", [PERMUTED], lambda a: L.lu_factor(a), growth=512)
case("lu_unpack", "gb.lu_unpack(L.lu_factor(a))", [PERMUTED], lambda a: torch.lu_unpack(*L.lu_factor(a)), growth=512)
for left in (True, False):
    for adjoint in (True, False):
        words = f"left = {str(left).lower()}, adjoint = {str(adjoint).lower()}"
        case(f"lu_solve, {words}", f"(function() local LU, pivots = L.lu_factor(a) return L.lu_solve(LU, pivots, b, {{ {words} }}) end)()",
             [PERMUTED, rand(5, 5)], lambda a, b, l=left, j=adjoint: L.lu_solve(*L.lu_factor(a), b, left=l, adjoint=j), growth=512)
case("lu_solve, batches", "(function() local LU, pivots = L.lu_factor(a) return gb.lu_solve(b, LU, pivots) end)()",
     [rand(3, 1, 4, 4).map(lambda x: x + 3 * torch.eye(4, dtype=x.dtype)), rand(2, 4, 2)],
     lambda a, b: L.lu_solve(*L.lu_factor(a), b), growth=512)
SQUARE = rand(2, 4, 4).map(lambda x: x @ x.mT + torch.eye(4, dtype=x.dtype))
case("matrix_sqrth", "L.matrix_sqrth(a)", [SQUARE], L.matrix_sqrth, growth=512)
case("matrix_sqrth, equal values", "L.matrix_sqrth(a)", [4 * torch.eye(3, dtype=torch.float64)], L.matrix_sqrth, growth=512)
# ====}

# {==== weights of norms in layers, attention with more keys ====
case("fuse_conv_bn_weights", "gb.nn.utils.fuse_conv_bn_weights(a, nil, b, c, 1e-3, d)", [rand(3, 2, 2, 2), rand(3), rand(3, low=0.25), rand(3)],
     lambda w, m, v, s: nn.utils.fuse_conv_bn_weights(w, None, m, v, 1e-3, s, None), grad=[])
case("fuse_conv_bn_weights, transposed", "gb.nn.utils.fuse_conv_bn_weights(a, b, b, c, 1e-3, nil, d, true)",
     [rand(2, 3, 2), rand(3), rand(3, low=0.25), rand(3)],
     lambda w, m, v, s: nn.utils.fuse_conv_bn_weights(w, m, m, v, 1e-3, None, s, True), grad=[])
case("fuse_linear_bn_weights", "gb.nn.utils.fuse_linear_bn_weights(a, b, b, c, 1e-3, d, d)", [rand(3, 2), rand(3), rand(3, low=0.25), rand(3)],
     lambda w, m, v, s: nn.utils.fuse_linear_bn_weights(w, m, m, v, 1e-3, s, s), grad=[])


def attention(x, weight, causal=False, padding=None, **options):
    m = nn.MultiheadAttention(4, 2, batch_first=True, **options).double()
    w = weight.detach().reshape(-1)
    for name, n in (("in_proj_weight", 48), ("in_proj_bias", 12), ("bias_k", 4), ("bias_v", 4), ("out_proj.weight", 16), ("out_proj.bias", 4)):
        p = dict(m.named_parameters()).get(name)
        if p is not None:
            p.data.copy_(w[:n].reshape(p.shape))
        w = w[n:]
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=torch.float64) if causal else None
    return m(x, x, x, need_weights=True, attn_mask=mask, key_padding_mask=padding)


ATTENTION = ("(function() local m = nn.MultiheadAttention(4, 2, %s):double() local parts = { m.qkv.weight, m.qkv.bias, m.bias_k or 4, m.bias_v or 4, "
             "m.proj.weight, m.proj.bias } local at = 1 for _, p in ipairs(parts) do local n = gb.is_tensor(p) and p:numel() or p "
             "if gb.is_tensor(p) then gb.no_grad(function() p:copy_(b:narrow(1, at, n):reshape(p.shape)) end) end at = at + n end "
             "local y, w = m(a, %s) return y, w end)()")
case("attention, more keys", ATTENTION % ("{ add_bias_kv = true, add_zero_attn = true }", "{ need_weights = true }"), [rand(2, 3, 4), rand(88)],
     lambda x, w: attention(x, w, add_bias_kv=True, add_zero_attn=True), grad=[0])
case("attention, one more key, causal", ATTENTION % ("{ add_bias_kv = true }", "{ need_weights = true, is_causal = true }"), [rand(2, 3, 4), rand(88)],
     lambda x, w: attention(x, w, causal=True, add_bias_kv=True), grad=[0])
case("attention, zeros, padding", ATTENTION % ("{ add_zero_attn = true }", "{ need_weights = true, key_padding_mask = c }"),
     [rand(2, 3, 4), rand(88), torch.tensor([[False, False, True], [False, True, True]])],
     lambda x, w, p: attention(x, w, padding=p, add_zero_attn=True), grad=[0])
# ====}

# {==== several tensors as an index ====
I, J, K, M = ([[0, 2, 2]], [[2], [1]], [2, 0, 2], [True, False, True, True, False])


def spelled(x):
    if isinstance(x, list):
        return "gb.tensor { " + ", ".join(spelled(e)[9 * isinstance(e, list):] for e in x) + " }"
    return str(x).lower()


def place(x):
    return torch.tensor(x) if isinstance(x, list) else x


ALL = slice(None)
INDICES = {  # as Lua writes it, and as PyTorch does
    "beside": (f"{spelled(K)}, {spelled(K)}", (K, K)),
    "broadcast": (f"{spelled(I)}, {spelled(J)}", (I, J)),
    "behind": (f"{{}}, {spelled(I)}, {spelled(J)}", (ALL, I, J)),
    "apart": (f"{spelled(K)}, {{}}, {spelled(I)}", (K, ALL, I)),
    "apart and behind": (f"{{}}, {spelled(K)}, {{ 2, 4 }}, {spelled(J)}", (ALL, K, slice(1, 4), J)),
    "beside a position": (f"{spelled(K)}, 1, {spelled(K)}", (K, 0, K)),
    "three": (f"{spelled(K)}, {spelled(I)}, {{ 1, 5, 2 }}, {spelled(J)}", (K, I, slice(0, 5, 2), J)),
    "a mask": (f"{{}}, {spelled(K)}, {spelled(M)}", (ALL, K, M)),
    "of none": ("gb.empty(0, { dtype = 'int64' }), gb.empty({ 2, 0 }, { dtype = 'int64' })", (torch.empty(0).long(), torch.empty(2, 0).long())),
}
for tag, (lua, key) in INDICES.items():
    key = tuple(place(k) for k in key)
    cube = rand(4, 3, 5, 4)
    case(f"index, {tag}", f"a[{{ {lua} }}]", [cube], lambda x, key=key: x[key])
    case(f"index, {tag}, turned", f"a:permute(4, 3, 2, 1)[{{ {lua} }}]", [rand(4, 5, 3, 4)],
         lambda x, key=key: x.permute(3, 2, 1, 0)[key])
    if tag in ("beside", "of none", "a mask", "three"):  # elements that are named twice have no order
        continue
    shape = torch.empty(4, 3, 5, 4)[key].shape


    def put(x, v, key=key):
        x = x.clone()
        x[key] = v
        return x

    lua = lua.replace(spelled(I), "gb.tensor { { 0, 2, 1 } }").replace(spelled(K), "gb.tensor { 2, 0, 1 }")
    once = tuple(torch.tensor(([[0, 2, 1]] if k.tolist() == I else [2, 0, 1] if k.tolist() == K else k.tolist()))
                 if isinstance(k, torch.Tensor) else k for k in key)
    for what, value in (("all", rand(*shape)), ("one", rand(1))):
        case(f"index, {tag}, set {what}", f"(function() local y = a:clone() y[{{ {lua} }}] = b return y end)()", [cube, value],
             lambda x, v, once=once: put(x, v, once))
        case(f"index, {tag}, set {what}, turned",
             f"(function() local y = a:permute(4, 3, 2, 1):clone() y[{{ {lua} }}] = b return y end)()", [rand(4, 5, 3, 4), value],
             lambda x, v, once=once: put(x.permute(3, 2, 1, 0), v, once))
# ====}

if __name__ == "__main__":
    lines.main("made", ["made"], lambda family: ROWS)
