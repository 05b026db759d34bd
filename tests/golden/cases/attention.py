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
