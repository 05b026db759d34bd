"""Cases of the attention family. tests/golden/attention.py has those of more widths and tiles."""
import torch
import torch.nn.functional as F

from . import case, flags, rand, x0, x1, x2, x3


def attention(**options):
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, mask[0] if mask else None, **options)


def first_key_open(mask):
    """No query may have all its keys masked: PyTorch makes NaN of that."""
    mask = mask.clone()
    mask[:, 0] = True
    return mask


qkv = [rand(2, 2, 5, 4), rand(2, 2, 5, 4), rand(2, 2, 5, 4)]
case("scaled_dot_product_attention", qkv, [x0, x1, x2], attention(), growth=64)
case("scaled_dot_product_attention", qkv, [x0, x1, x2, None, {"is_causal": True}], attention(is_causal=True),
     growth=64, tag="causal")
case("scaled_dot_product_attention", [rand(1, 2, 3, 4), rand(1, 2, 7, 4), rand(1, 2, 7, 4)],
     [x0, x1, x2, None, {"scale": 0.25}], attention(scale=0.25), growth=64, tag="cross, scale")
case("scaled_dot_product_attention", qkv + [flags(5, 5, share=0.6).map(first_key_open)], [x0, x1, x2, x3], attention(),
     growth=64, tag="bool mask")
case("scaled_dot_product_attention", qkv + [rand(2, 1, 5, 5)], [x0, x1, x2, x3], attention(), grad=[0, 1, 2],
     growth=64, tag="float mask")
case("scaled_dot_product_attention", [rand(1, 1, 70, 8), rand(1, 1, 70, 8), rand(1, 1, 70, 8)],
     [x0, x1, x2, None, {"is_causal": True}], attention(is_causal=True), growth=64, tag="causal, several tiles")


def near(window, causal, time=None):
    """Keys that are less than a number of positions away."""
    i, j = torch.arange(time or 5)[:, None], torch.arange(time or 5)
    return ((i - j).abs() < window) & (j <= i if causal else torch.ones(1, dtype=torch.bool))


case("scaled_dot_product_attention", qkv + [rand(2, 1, 5, 5)], [x0, x1, x2, x3], attention(), growth=64,
     tag="gradient of a mask")
case("scaled_dot_product_attention", qkv + [rand(5)], [x0, x1, x2, x3, {"is_causal": True}],
     lambda q, k, v, m: F.scaled_dot_product_attention(
         q, k, v, m + torch.zeros(5, 5).masked_fill(~near(5, True), -torch.inf).to(q.dtype)),
     growth=64, tag="gradient of a broadcast mask, causal")
case("scaled_dot_product_attention", qkv, [x0, x1, x2, None, {"window": 2}],
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, near(2, False)), growth=64, tag="window")
case("scaled_dot_product_attention", qkv, [x0, x1, x2, None, {"window": 3, "is_causal": True}],
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, near(3, True)), growth=64, tag="window, causal")
case("scaled_dot_product_attention", [rand(1, 1, 140, 2), rand(1, 1, 140, 2), rand(1, 1, 140, 2)],
     [x0, x1, x2, None, {"window": 20, "is_causal": True}],
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, near(20, True, 140)), growth=64,
     tag="window, causal, several tiles")
case("scaled_dot_product_attention", [rand(2, 4, 5, 4), rand(2, 2, 5, 4), rand(2, 2, 5, 4)],
     [x0, x1, x2, None, {"enable_gqa": True}], attention(enable_gqa=True), growth=64, tag="grouped")


def rotary(interleaved):
    """Pairs of features turned by complex numbers, as the paper has it."""
    def turned(x, cos, sin):
        n = cos.shape[-1]
        pairs = x[..., :2 * n].unflatten(-1, (n, 2) if interleaved else (2, n))
        a, b = pairs.unbind(-1 if interleaved else -2)
        y = torch.stack([a * cos - b * sin, b * cos + a * sin], -1 if interleaved else -2).flatten(-2)
        return torch.cat([y, x[..., 2 * n:]], -1)

    return turned


angles = [rand(5, 2), rand(5, 2)]
case("rotary_embedding", [rand(2, 3, 5, 4), *angles], [x0, x1, x2], rotary(False), growth=4)
case("rotary_embedding", [rand(2, 3, 5, 4), *angles], [x0, x1, x2, {"interleaved": True}], rotary(True), growth=4,
     tag="interleaved")
case("rotary_embedding", [rand(2, 3, 5, 7), *angles], [x0, x1, x2], rotary(False), growth=4, tag="a part")
case("rotary_embedding", [rand(2, 5, 7), rand(2, 1, 2), rand(2, 1, 2)], [x0, x1, x2, {"interleaved": True}],
     rotary(True), growth=4, tag="a part, interleaved")
